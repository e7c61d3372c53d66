"""The memory node: what the robot learns is remembered, and planned with.

Knows services, topics and parameters. Does not know how KV is kept or reused. Its callbacks wait,
for files and for the engine's thread, so a thread of its own serves them.

The planner computes on the engine's device thread, in short steps: some tokens of a layer, or one
token of an answer. A step begins when no action and no prefill waits, and none is expected, so
an action waits for one step at most. A torch thread of its own would not be simpler, and would
compete with the actions for cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from std_msgs.msg import String

from embodied_kv.memory.encoder import encoder
from embodied_kv.model.planner_checkpoint import load_planner
from embodied_kv.msg import MemorySegment, MissionState, TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.robot_memory import (
    PRECOMPUTE_EVERY,
    PlansWithMemory,
    RobotMemory,
    can_plan,
)
from embodied_kv.planning.config import MIB, PlanningConfig
from embodied_kv.planning.domain import load_domain
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.robot_folder import MemoryParams, opened, planner_of

T = TypeVar('T')
SET_BACK = JumpThreshold(min_forward=None, min_backward=Duration(seconds=-0.5))


class Memory(SuiteNode):
    """Answers `memory/*`, and remembers what comes on `memory/observe`."""

    may_wait = True

    def __init__(self, **arguments: object) -> None:
        super().__init__('memory', MemoryParams, PlanningConfig, **arguments)

    @property
    def autostart(self) -> bool:
        """Not without a planner: that of the parameter, or of the contract."""
        return super().autostart and can_plan(self)

    def setup(self) -> None:
        params, domain = self.params.read(MemoryParams), self.embodiment.contract.language
        self._memory = RobotMemory(
            self._open(), load_domain(domain), params.task_records, self.warn_throttled
        )
        self._release.callback(self._memory.close)
        self.serve_all('memory', self._memory.verbs)
        self.subscribe(MemorySegment, 'memory/observe', self._memory.observe, qos.MEMORY)
        self.subscribe(TextDelta, 'language/text', self._memory.hear, qos.TEXT)
        self.subscribe(MissionState, 'mission/state', self._memory.follow, qos.STATUS, always=True)
        self.subscribe(String, 'instruction', self._on_instruction, qos.INSTRUCTION)
        if params.step_seconds:
            self.every(params.step_seconds, self._memory.advance)
        jumps = self.get_clock().create_jump_callback(SET_BACK, post_callback=self._begin)
        self._release.callback(jumps.unregister)
        self.every(PRECOMPUTE_EVERY, self._precompute)

    def _open(self) -> PlansWithMemory:
        """Return what plans, until cleanup. Raises ValueError, MemoryFault."""
        params = self.params.read(MemoryParams)
        path = planner_of(params.planner, self.embodiment.contract.language.planner)
        planning = self._release.enter_context(
            opened(
                load_planner(path, device=self.host.engine.config.device),
                encoder(params.encoder),
                params,
                self.params.read(PlanningConfig),
                self.robot,
                self._step,
                self.host.plane,
            )
        )
        session, part = self.host.session(self.robot), MemoryPart(planning)
        session.register(part)
        self._release.callback(session.unregister, part)
        return planning

    def start(self) -> None:
        self._begin()

    def _begin(self, *_: object) -> None:
        """Also where the clock was set back: a simulation began again."""
        self._memory.begin(self.get_clock().now().nanoseconds)

    def _step(self, work: Callable[[], T]) -> T:
        return self.host.device.background(work).result()

    def _on_instruction(self, message: String) -> None:
        self._memory.tell(message.data, self.get_clock().now().nanoseconds)

    def _precompute(self) -> None:
        if self.params.read(MemoryParams).precompute:
            self._memory.precompute()

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        stats = self._memory.stats
        values = {
            'segments': stats.segments,
            'groups': f'{stats.static} static, {stats.dynamic} dynamic',
            'units with KV': f'{stats.kept}, {stats.bytes / MIB:.1f} MiB',
            'cached (MiB)': f'{stats.cached_bytes / MIB:.1f}',
            'plans': stats.plans,
        }
        if self.warning_counts['precompute'] or self.warning_counts['segment']:
            return WARN, 'not all is remembered', values
        return OK, f'memory: {stats.segments} segments', values
