"""The fleet node: many robots' requests become batches of one engine, and their answers chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor

from embodied_kv.engine.guidance import leftover
from embodied_kv.fleet import profile
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Receipt, Verdict
from embodied_kv.fleet.trace_writer import TraceWriter
from embodied_kv.msg import FleetRequest, TextDelta
from embodied_kv.nodes.common import executable
from embodied_kv.nodes.common.kv_services import KvServices
from embodied_kv.nodes.common.lifecycle_node import ERROR, OK, SUCCESS, WARN, SuiteNode
from embodied_kv.nodes.fleet import messages
from embodied_kv.nodes.fleet.connections import Connections
from embodied_kv.nodes.fleet.language import FleetLanguage
from embodied_kv.nodes.fleet.memory import FleetMemory
from embodied_kv.nodes.fleet.missions import FleetMissions, MissionsThread
from embodied_kv.nodes.fleet.params import FleetParams
from embodied_kv.nodes.fleet.robot_proxy import RobotProxy
from embodied_kv.nodes.fleet.robots_node import RobotsNode, RobotsThread
from embodied_kv.nodes.fleet.session import FleetSession, SessionThread
from embodied_kv.serving.batch import KeptRows, profile_of, serve
from embodied_kv.serving.fleet_server import FleetServer, Result
from embodied_kv.serving.remote import RemoteEngine
from embodied_kv.serving.shares import StreamShares
from embodied_kv.serving.slack import Slack
from embodied_kv.types import Guide, Observation

HERE, CLOUD = 'here', 'cloud'  # the engine of this process, and one in a Ray cluster
PLANS = 64  # robots that plan at the same time; others wait for one of them


class Fleet(SuiteNode):
    """Hears `ROBOT/fleet/request`, answers on `ROBOT/fleet/answer`.

    server: makes the server that it drives; one with another clock, for instance.
    """

    def __init__(
        self, server: Callable[..., FleetServer] = FleetServer, **arguments: object
    ) -> None:
        super().__init__('fleet', FleetParams, **arguments)
        self._new_server = server
        self._options = {name: arguments[name] for name in arguments.keys() - {'namespace'}}

    def setup(self) -> None:
        self._params = self.params.read(FleetParams)
        self._profile = self._measured()
        seconds = self._profile.latency(self._profile.saturation)
        self.log_info(
            'batches',
            f'batches of up to {self._profile.saturation} robots, which take '
            f'{seconds * 1e3:.0f} ms',
        )
        self._cloud = self._remote() if self._params.cloud else None
        p, engine = self._params, self.host.engine
        self._kept = KeptRows(engine) if p.capsules or p.language else None
        self._shares = StreamShares(engine)
        self._slack = Slack(self._nobody_waits)
        self._language = self._memory = self._missions = None
        if p.language:
            given = self._kept, self._shares, self._said, self._on_mission
            self._language = self._beside(FleetLanguage, *given)
        if p.memory:
            self._memory = self._beside(FleetMemory, self._slack)
        if p.missions and self._kept:
            given = self._kept, self._shares, self._slack
            self._missions = self._beside(FleetMissions, *given)
        KvServices(self)
        self.every(0.2, self._update_connections)

    def _beside(self, kind: type[RobotsNode], *given: object) -> RobotsNode | None:
        """A node that serves the robots beside this one, until cleanup; None: it cannot."""
        node = kind(self.host, *given, namespace=self.get_namespace(), **self._options)
        self._release.callback(node.end)
        if not node.ready:
            return None
        if node.trigger_configure() != SUCCESS:
            raise ValueError(f'{node.get_name()} cannot be configured, for the reason above')
        return node

    def _measured(self) -> Profile:
        p, most = self._params, self.host.engine.config.robots
        if not p.profile:
            return self.host.profile()
        found = profile.read(Path(p.profile).expanduser())
        if found.saturation > most:
            raise ValueError(
                f'{p.profile} fills batches of {found.saturation}, engine.robots is {most}'
            )
        return found

    def _remote(self) -> RemoteEngine:
        """The engine elsewhere, of the same model and settings, until cleanup."""
        p, suite = self._params, self.suite
        if not suite.preset:
            raise ValueError('parameter preset: name the model that the cloud is to load')
        config = replace(self.host.engine.config, device=p.cloud_device)
        address = '' if p.cloud == 'local' else p.cloud
        cloud = RemoteEngine(
            address, suite.preset, suite.checkpoint, config, self.embodiment.contract
        )
        self._release.callback(cloud.close)
        return cloud

    def start(self) -> None:
        p, model = self._params, self.host.model
        trace = TraceWriter(Path(p.trace).expanduser(), model.action_dt) if p.trace else None
        engines, serve = [EngineState(HERE, self._profile)], {HERE: self._serve}
        if self._cloud is not None:
            found = profile_of(model, self._cloud.seconds)
            engines.append(EngineState(CLOUD, found, p.link))
            serve[CLOUD] = self._serve_elsewhere
        self._instructions: dict[str, str] = {}  # that memory knows of
        self._threads: list[SessionThread | RobotsThread] = []
        if p.capsules:
            self._threads.append(SessionThread(self, self._proxy, self._robot_capsules))
        if self._language:
            executor = SingleThreadedExecutor(context=self.context)
            self._threads.append(RobotsThread(self._language, executor))
        self._learns = None
        if self._memory:
            executor = MultiThreadedExecutor(PLANS, context=self.context)
            self._learns = RobotsThread(self._memory, executor)
            self._threads.append(self._learns)
        if self._missions:
            executor = SingleThreadedExecutor(context=self.context)
            self._threads.append(MissionsThread(self._missions, executor, self._proxy))
        self._server = self._new_server(
            Dispatcher(p.order, engines, p.max_queue_delay),
            serve,
            self._deliver,
            p.robot_timeout,
            trace,
            on_idle=self._on_idle,
            on_vanished=self._silent,
        )
        self.host.engine.budget.forecast = self._slack.seconds
        self._connections = Connections(
            self,
            p.names,
            on_request=self._surviving(self._on_request),
            on_finished=self._surviving(self._server.finish),
            on_joined=self._joined,
            on_left=self._left,
        )
        self._server.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._server.stop()
        self._connections.close()
        for thread in reversed(self._threads):  # missions first: they ask the others
            thread.stop()
        self.host.engine.budget.forecast = None
        if self._kept:
            self.host.device.call(self._kept.clear).result()

    def _update_connections(self) -> None:
        self._connections.update()

    # ------------------------------------------------------------------ who is there

    def _joined(self, robot: str) -> None:
        for thread in self._threads:
            thread.open(robot)

    def _left(self, robot: str) -> None:
        self._server.vanish(robot)
        self._instructions.pop(robot, None)
        for thread in self._threads:
            thread.close(robot)
        if self._kept:
            self.host.device.call(lambda: self._kept.drop(robot))

    def _silent(self, robot: str) -> None:
        if self._language:
            self._language.silence(robot)

    def _on_mission(self, robot: str) -> bool:
        return self._missions is not None and self._missions.is_on(robot)

    def _robot_capsules(self, actor: RobotProxy) -> FleetSession:
        own = partial(self._language.own, actor.robot) if self._language else lambda streams: None
        return FleetSession(self.host, self._kept, self._shares, actor, own, **self._options)

    def _proxy(self, robot: str) -> RobotProxy:
        return RobotProxy(self, robot, self.host.model, self.embodiment.axes)

    # ------------------------------------------------------------------ what robots say

    def _on_request(self, robot: str, message: FleetRequest) -> None:
        try:
            request = messages.request(message, robot, self._params.execution_horizon)
            seen = messages.observation(message, robot, self.host.model, self.embodiment.state)
            seen = replace(seen, guide=self._guide(message, seen))
        except ValueError as error:
            self.warn_throttled('request', f'a request of {robot} is refused: {error}')
            self._deliver(robot, message.task, message.round, Receipt(Verdict.REFUSED, str(error)))
            return
        self._server.submit(request, seen)
        self._told(robot, seen)

    def _guide(self, message: FleetRequest, seen: Observation) -> Guide | None:
        """What its chunk is to go on from. Raises ValueError here, before others are with it."""
        if self.host.engine.config.rtc == 'off':
            return None
        guide = messages.guide(message, self.host.model, self.embodiment.actions)
        leftover(guide, self.host.engine.policy, seen.state)
        return guide

    def _deliver(self, robot: str, task: str, round: int, receipt: Receipt) -> None:
        answer = messages.answer_message(task, round, receipt, self.embodiment.actions)
        self._connections.send(robot, answer)

    def _serve(self, frames: Sequence[Observation], deadline: float) -> Future[list[Result]]:
        return self.host.device.call(partial(self._batch, frames, deadline))

    def _serve_elsewhere(
        self, frames: Sequence[Observation], deadline: float
    ) -> Future[list[Result]]:
        """By the other engine; rows of frames before these are nobody's newest any more."""
        if self._kept:
            self.host.device.call(lambda: [self._kept.drop(frame.robot) for frame in frames])
        return self._cloud(frames, deadline)

    def _batch(self, frames: Sequence[Observation], deadline: float) -> list[Result]:
        """On the device thread; words begin when the chunks are on their way."""
        results = serve(self.host.engine, frames, deadline, self._kept)
        if self._language:
            served = zip(frames, results, strict=True)
            self._language.served(f.robot for f, r in served if not isinstance(r, Exception))
        return results

    # ------------------------------------------------------------------ beside chunks

    def _nobody_waits(self, now: float) -> float:
        """For how long, s, this process's engine has time for more than chunks."""
        return self._server.slack(HERE, now)

    def _on_idle(self) -> None:
        self.host.device.wake()
        self._slack.opened()

    def _said(self, robot: str, message: TextDelta) -> None:
        if self._learns:
            self._learns.put(partial(self._memory.hear, robot, message))

    def _told(self, robot: str, seen: Observation) -> None:
        if self._learns and self._instructions.get(robot) != seen.instruction:
            self._instructions[robot] = seen.instruction
            self._learns.put(partial(self._memory.tell, robot, seen.instruction, seen.stamp))

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        connections = self._connections
        values = {
            'connections': len(connections.robots),
            **self._server.values(),
            **connections.publishers.values(),
        }
        if not all(engine.alive for engine in self._server.dispatcher.engines.values()):
            return ERROR, 'an engine owes an answer, or has failed', values
        if not connections.robots:
            return WARN, 'no robot asks', values
        if problem := connections.publishers.problem:
            return WARN, problem, values
        return OK, 'serving', values


def main() -> None:
    """Run the executable `fleet`, in a process of its own."""
    executable.run(Fleet)


if __name__ == '__main__':
    main()
