"""The missions of a fleet's robots, each in its own namespace.

Knows robots and their missions, and how a robot of a fleet is looked at: while it stands it asks
for nothing, so its newest moment is fetched and prefilled where no batch needs the engine. Each
mission waits on a thread of its own; the node's thread answers for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from rclpy.executors import Executor

from embodied_kv.errors import ErrorCode, code_of
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.lifecycle_node import OK
from embodied_kv.nodes.fleet import messages
from embodied_kv.nodes.fleet.robot_proxy import RobotProxy, RoundPart
from embodied_kv.nodes.fleet.robots_node import RobotsNode, RobotsThread
from embodied_kv.nodes.missions.calls import AT_ONCE, Calls, ServiceRefused
from embodied_kv.nodes.missions.crew import Crew
from embodied_kv.nodes.missions.params import MissionParams, can_carry_out
from embodied_kv.nodes.robot_mission import FEEDBACK, RobotMission
from embodied_kv.planning.domain import load_domain
from embodied_kv.planning.mission import Interrupted
from embodied_kv.serving.batch import KeptRows
from embodied_kv.serving.shares import StreamShares
from embodied_kv.serving.slack import Slack
from embodied_kv.types import Observation

LAST_WORDS = 0.2  # s in which a mission that is over is told to its arm and its client
PATIENCE = 5.0  # s in which a robot's share of the streams has room again


class FleetCalls(Calls):
    """Asks no more at once than the robot's share of streams, and again what that refuses."""

    def _streams(self, questions: Sequence[str]) -> dict[str, int]:
        begun: dict[str, int] = {}
        until = time.monotonic() + PATIENCE
        while left := [q for q in questions if q not in begun]:
            sent = {q: self._send('language/ask', question=q) for q in left}
            for question, future in sent.items():
                try:
                    begun[question] = self._answered('language/ask', future).stream
                except ServiceRefused:
                    if time.monotonic() > until:
                        raise
            self.rest()
        return begun


class FleetCrew(Crew):
    """see: fetches the frame that a look is about, or raises Interrupted."""

    stay = *Crew.stay, RoundPart.name  # a task's rounds are counted by the robot, which goes on

    def __init__(self, *given: object, see: Callable[[], None], **how: object) -> None:
        super().__init__(*given, **how)
        self._see = see

    def look(self, instruction: str = '') -> None:
        self._see()
        super().look(instruction)

    def mark(self, step: int) -> None:
        try:
            super().mark(step)
        except ValueError as error:  # the robot does not say what it sees
            self._on_fault(f'no boundary before step {step}: {error}')


class FleetMissions(RobotsNode):
    """Serves `mission` of every robot.

    kept: the rows that language reads. shares: of its streams.
    """

    def __init__(
        self,
        host: EngineHost,
        kept: KeptRows,
        shares: StreamShares,
        slack: Slack,
        **arguments: object,
    ) -> None:
        super().__init__('mission', host, MissionParams, **arguments)
        self._kept, self._shares, self._slack = kept, shares, slack
        self.actors: dict[str, RobotProxy] = {}  # of the robots that are there
        self.missions: dict[str, RobotMission] = {}

    @property
    def ready(self) -> bool:
        return can_carry_out(self)

    def setup(self) -> None:
        load_domain(self.embodiment.contract.language)  # fails here, not where a robot comes
        self.every(FEEDBACK, self._look)

    def is_on(self, robot: str) -> bool:
        """Whether a mission of this robot is under way. From any thread."""
        mission = self.missions.get(robot)
        return mission is not None and mission.state is not None

    # ------------------------------------------------------------------ robots come and go

    def join(self, robot: str) -> None:
        """A robot has come."""
        with self.joining(robot) as closing:
            mission = self.missions[robot] = RobotMission(
                self,
                self.host.session(robot),
                f'{robot.rstrip("/")}/',
                self._calls,
                partial(FleetCrew, see=partial(self._look_at, robot)),
            )
            closing.callback(self.missions.pop, robot)
            closing.callback(mission.close)

    def _calls(self, node: RobotsNode, scope: str) -> FleetCalls:
        """Its share gets smaller where robots come, so it is looked at again and again."""
        return FleetCalls(node, scope, lambda: max(1, min(AT_ONCE, self._shares.each - 1)))

    def _look(self) -> None:
        for mission in list(self.missions.values()):
            mission.look()

    # ------------------------------------------------------------------ on a mission's thread

    def _look_at(self, robot: str) -> None:
        """The robot's newest moment becomes its newest row. Raises Interrupted."""
        actor = self.actors.get(robot)
        if actor is None:
            raise Interrupted('the robot has gone', ErrorCode.UNAVAILABLE)
        try:
            actor.look()
            _, round = actor.round
            model, states = self.host.model, self.embodiment.state
            seen = messages.sight(actor.seen, robot, round, model, states, instruction='')
            self._slack.wait()
            self.host.device.background(partial(self._prefill, seen)).result()
        except ValueError as error:
            raise Interrupted(str(error), code_of(error)) from error

    def _prefill(self, seen: Observation) -> None:
        (handle,) = self.host.engine.prefill([seen])
        self._kept.keep(self.host.engine.kv.acquire(handle))

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        states = {robot: mission.state for robot, mission in list(self.missions.items())}
        running = {robot: state for robot, state in states.items() if state is not None}
        values = {f'mission of {robot}': state.words for robot, state in running.items()}
        return OK, f'missions: {len(running)}', {'robots': len(states), **values}


class MissionsThread(RobotsThread):
    """Serves such a node. proxy: of a robot, made on the fleet's thread, closed on this one."""

    def __init__(
        self, node: FleetMissions, executor: Executor, proxy: Callable[[str], RobotProxy]
    ) -> None:
        super().__init__(node, executor)
        self._missions, self._proxy = node, proxy

    def open(self, robot: str) -> None:
        self._missions.actors[robot] = self._proxy(robot)
        super().open(robot)

    def close(self, robot: str) -> None:
        self.put(partial(self._end, [robot], 'the robot has gone'))
        super().close(robot)
        self.put(self._missions.actors.pop(robot).close)  # a look may be waiting for it till then

    def stop(self) -> None:
        self.put(
            partial(
                self._end,
                [*self._missions.actors],
                'the fleet is not active any more',
                ErrorCode.NOT_ACTIVE,
            )
        )
        super().stop()
        while self._missions.actors:
            self._missions.actors.popitem()[1].close()

    def _end(
        self, robots: Sequence[str], why: str, code: ErrorCode = ErrorCode.UNAVAILABLE
    ) -> None:
        """Their missions end; arms and clients are told before what tells them goes."""
        missions = self._missions.missions
        ending = [missions[robot] for robot in robots if robot in missions]
        for mission in ending:
            mission.end(why, code)
        while not all([mission.settle() for mission in ending]):
            self.executor.spin_once(timeout_sec=LAST_WORDS)
        until = time.monotonic() + LAST_WORDS
        while (left := until - time.monotonic()) > 0:
            self.executor.spin_once(timeout_sec=left)
