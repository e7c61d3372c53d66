"""The capsules of a fleet: in each robot's namespace a node that freezes and restores that robot.

Knows nodes and their thread. A node reaches the session, the folder and the services of its own
namespace alone, so no robot can see, restore or drop what another one keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.lifecycle_node import SUCCESS
from embodied_kv.nodes.control.session_parts import ActionPart, InstructionPart
from embodied_kv.nodes.fleet.node_thread import NodeThread
from embodied_kv.nodes.fleet.robot_proxy import RobotProxy, RoundPart
from embodied_kv.nodes.session import Session
from embodied_kv.serving.batch import KeptRows
from embodied_kv.serving.served_part import ServedPart
from embodied_kv.serving.shares import StreamShares
from embodied_kv.session.robot_session import Resumed
from embodied_kv.srv import CapsuleRestore, CapsuleRollback


class FleetSession(Session):
    """Answers `capsule/*` in the namespace of one robot of a fleet.

    host: the fleet's. kept, shares: of its robots. actor: the robot itself. own: takes the streams
    that a capsule resumed, on the engine's thread.
    """

    on_engine = False

    def __init__(
        self,
        host: EngineHost,
        kept: KeptRows,
        shares: StreamShares,
        actor: RobotProxy,
        own: Callable[[Sequence[DecodeStream]], None],
        **arguments: object,
    ) -> None:
        super().__init__(namespace=actor.robot, **arguments)
        self._fleet_host, self._actor, self._own = host, actor, own
        self._kept, self._shares = kept, shares

    def find_host(self) -> EngineHost:
        return self._fleet_host

    def setup(self) -> None:
        super().setup()
        session, actor, model = self._session, self._actor, self.host.model
        session.engine_part = ServedPart(self.host.engine, self.robot, self._kept, self._shares)
        for part in (
            session.engine_part,
            InstructionPart(lambda: actor.instruction, actor.tell),
            RoundPart(actor),
            ActionPart(
                actor,
                lambda: self.get_clock().now().nanoseconds,
                model.action_dt,
                self.embodiment.axes,
            ),
        ):
            session.register(part)

    def scene(self) -> SceneSummary | None:
        return self._actor.look()

    def on_hold(self) -> None:
        self._actor.hold()

    def on_resumed(self, streams: Sequence[DecodeStream]) -> None:
        self._own(streams)

    def _restore(self, request: CapsuleRestore.Request, response: CapsuleRestore.Response) -> None:
        with self._actor.ordered():
            super()._restore(request, response)

    def _rollback(
        self, request: CapsuleRollback.Request, response: CapsuleRollback.Response
    ) -> None:
        with self._actor.ordered():
            self._actor.look()  # a robot that is not there goes nowhere
            super()._rollback(request, response)

    def _fill_resumed(
        self, response: CapsuleRestore.Response | CapsuleRollback.Response, resumed: Resumed
    ) -> None:
        super()._fill_resumed(response, resumed)
        response.message += f'; its task is {self._actor.send()} now'


class SessionThread(NodeThread):
    """Answers for the capsules of all robots.

    node: whose executor serves the robots' answers. proxy: of a robot, by its name. make: the node
    of one robot, not configured.
    """

    def __init__(
        self,
        node: Node,
        proxy: Callable[[str], RobotProxy],
        make: Callable[[RobotProxy], FleetSession],
    ) -> None:
        super().__init__('fleet capsules', SingleThreadedExecutor(context=node.context))
        self._proxy, self._make = proxy, make
        self._nodes: dict[str, FleetSession] = {}
        self._actors: dict[str, RobotProxy] = {}

    # ------------------------------------------------------------------ from the fleet's thread

    def open(self, robot: str) -> None:
        """A robot has come."""
        actor = self._actors[robot] = self._proxy(robot)
        self.put(partial(self._open, actor))

    def close(self, robot: str) -> None:
        """It has gone; what it kept in memory is given up."""
        self.put(partial(self._close, robot))
        self._actors.pop(robot).close()

    def stop(self) -> None:
        """All have gone, and the thread ends."""
        for robot in list(self._actors):
            self.put(partial(self._close, robot))
        super().stop()
        for actor in self._actors.values():
            actor.close()

    # ------------------------------------------------------------------ the thread

    def _open(self, actor: RobotProxy) -> None:
        node = self._nodes[actor.robot] = self._make(actor)
        self.executor.add_node(node)
        if node.trigger_configure() == SUCCESS:
            node.trigger_activate()

    def _close(self, robot: str) -> None:
        node = self._nodes.pop(robot, None)
        if node is not None:
            self.executor.remove_node(node)
            node.end()
