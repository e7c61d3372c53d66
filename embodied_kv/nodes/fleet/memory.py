"""What the robots of a fleet remember and plan with, each in its own namespace and folder.

Knows robots and their memories. One planner, and one encoder of meaning, serve all; a robot has a
row of its own, of one arena. Its callbacks wait, for files and for the engine's thread: those of
one robot come one after another, those of many at once.

A step of a plan runs on the device thread, when no batch waits there; while requests wait in the
fleet, the next step of a plan comes after PATIENCE. Prompts of many robots are prefilled in turn,
since each robot asks for its next step when it has the last one; answers are said in one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from embodied_kv.memory.encoder import encoder
from embodied_kv.model.planner_checkpoint import load_planner
from embodied_kv.msg import MemorySegment, MissionState, TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.lifecycle_node import OK, WARN
from embodied_kv.nodes.fleet.params import FleetMemoryParams
from embodied_kv.nodes.fleet.robots_node import RobotsNode
from embodied_kv.nodes.robot_memory import PRECOMPUTE_EVERY, RobotMemory, can_plan
from embodied_kv.planning.config import MIB, PlanningConfig
from embodied_kv.planning.domain import load_domain
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.planner_rows import PlannerRows
from embodied_kv.planning.robot_folder import MemoryParams, opened, planner_of
from embodied_kv.serving.slack import Slack

T = TypeVar('T')


class FleetMemory(RobotsNode):
    """Answers `memory/*` of every robot, and remembers what comes on its `memory/observe`."""

    def __init__(self, host: EngineHost, slack: Slack, **arguments: object) -> None:
        own = MemoryParams, PlanningConfig, FleetMemoryParams
        super().__init__('memory', host, *own, **arguments)
        self._slack = slack
        self._memories: dict[str, RobotMemory] = {}
        self._computing: set[str] = set()  # robots whose KV is being computed ahead

    @property
    def ready(self) -> bool:
        return can_plan(self)

    def setup(self) -> None:
        params = self.params.read(MemoryParams)
        path = planner_of(params.planner, self.embodiment.contract.language.planner)
        self._planner = load_planner(path, device=self.host.engine.config.device)
        self._encoder = encoder(params.encoder)
        self._domain = load_domain(self.embodiment.contract.language)
        rows = self.params.read(FleetMemoryParams).planner_rows
        self._rows = PlannerRows(self._planner.model, rows)
        self.log_info('rows', f'the planner: {rows} rows, {self._rows.bytes / MIB:.0f} MiB of KV')
        self.host.plane.join(self._rows)
        self._release.callback(self.host.plane.leave, self._rows)
        if params.step_seconds:
            self.every(params.step_seconds, self._advance)
        self.every(PRECOMPUTE_EVERY, self._precompute)

    # ------------------------------------------------------------------ robots come and go

    def join(self, robot: str) -> None:
        """A robot has come.

        Raises MemoryFault where its folder cannot be used, ValueError where no row is left for it.
        """
        prefix = robot.rstrip('/')
        with self.joining(robot) as closing:
            params = self.params.read(MemoryParams)
            planning = closing.enter_context(
                opened(
                    self._planner,
                    self._encoder,
                    params,
                    self.params.read(PlanningConfig),
                    robot,
                    partial(self._step, robot),
                    self.host.plane,
                    self._rows,
                )
            )
            memory = RobotMemory(planning, self._domain, params.task_records, self.warn_throttled)
            closing.callback(memory.close)
            session, part = self.host.session(robot), MemoryPart(planning)
            session.register(part)
            closing.callback(session.unregister, part)
            self._memories[robot] = memory
            closing.callback(self._memories.pop, robot)  # its plan ends with its next step
            self.serve_all(f'{prefix}/memory', memory.verbs)
            self.subscribe(MemorySegment, f'{prefix}/memory/observe', memory.observe, qos.MEMORY)
            states = f'{prefix}/mission/state'
            self.subscribe(MissionState, states, memory.follow, qos.STATUS, always=True)

    def _step(self, robot: str, work: Callable[[], T]) -> T:
        self._slack.wait()
        if robot not in self._memories:
            raise ValueError(f'{robot} has gone')
        return self.host.device.background(work).result()

    # ------------------------------------------------------------------ what is learnt

    def hear(self, robot: str, message: TextDelta) -> None:
        """What a robot says."""
        if memory := self._memories.get(robot):
            memory.hear(message)

    def tell(self, robot: str, instruction: str, stamp: int) -> None:
        """What a robot is told, as its frame of this stamp, ns, says; again: nothing changes."""
        if memory := self._memories.get(robot):
            memory.tell(instruction, stamp)

    def _advance(self) -> None:
        for memory in list(self._memories.values()):
            memory.advance()

    def _precompute(self) -> None:
        """Beside the robots' callbacks, each on a thread of its own."""
        if not self.params.read(MemoryParams).precompute:
            return
        for robot, memory in list(self._memories.items()):
            if memory.changed and robot not in self._computing:
                self._computing.add(robot)
                self.executor.create_task(self._surviving(self._precompute_one), robot, memory)

    def _precompute_one(self, robot: str, memory: RobotMemory) -> None:
        try:
            memory.precompute()
        finally:
            self._computing.discard(robot)

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        stats, rows = [memory.stats for memory in list(self._memories.values())], self._rows
        values = {
            'robots': len(stats),
            'segments': sum(of.segments for of in stats),
            'units with KV': sum(of.kept for of in stats),
            'KV (MiB)': f'{sum(of.bytes for of in stats) / MIB:.1f}',
            'cached (MiB)': f'{sum(of.cached_bytes for of in stats) / MIB:.1f}',
            'plans': sum(of.plans for of in stats),
            'answers of a step, mean': f'{rows.tokens / max(1, rows.steps):.1f}',
        }
        if self.warning_counts['precompute'] or self.warning_counts['segment']:
            return WARN, 'not all is remembered', values
        return OK, f'memories: {len(stats)}', values
