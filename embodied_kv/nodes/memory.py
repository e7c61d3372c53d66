"""The memory node: what the robot learns is remembered, and planned with.

Knows services, topics and parameters. Does not know how KV is kept or reused. Its callbacks wait,
for files and for the engine's thread, so a thread of its own serves them.

The planner computes on the engine's device thread, in short steps: some tokens of a layer, or one
token of an answer. A step begins when no action and no prefill waits, and none is expected, so
an action waits for one step at most. A torch thread of its own would not be simpler, and would
compete with the actions for cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Protocol, TypeVar

from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from std_msgs.msg import String

from embodied_kv.kv.plane import OverBudget
from embodied_kv.memory.encoder import encoder
from embodied_kv.memory.groups import Transition
from embodied_kv.memory.segment import MemoryFault
from embodied_kv.memory.store import Change
from embodied_kv.model.planner_checkpoint import load_planner
from embodied_kv.msg import MemorySegment, MissionState, TextDelta
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.planning.config import MIB, MemoryParams, PlanningConfig
from embodied_kv.planning.domain import Domain, Draft, load_domain
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.notes import NoteTaker
from embodied_kv.planning.plan import Match, Plan
from embodied_kv.planning.plan import MemoryStats as Stats
from embodied_kv.planning.planning import open_planning, planner_folder
from embodied_kv.srv import MemoryPlan, MemoryQuery, MemoryRemove, MemoryStats, MemoryUpsert
from embodied_kv.text import reason

PRECOMPUTED = 4  # units between two requests
PRECOMPUTE_EVERY = 0.5  # s


class PlansWithMemory(Protocol):
    """What `planning.Planning` does, here or at a policy server. All of it may wait."""

    @property
    def is_offered(self) -> bool: ...
    @property
    def has_room(self) -> bool: ...
    def tasks(self) -> list[tuple[str, int]]: ...
    def upsert(self, *segments: Draft) -> Sequence[Change]: ...
    def remove(self, id: str) -> Change: ...
    def advance(self) -> Sequence[Transition]: ...
    def query(self, question: str, k: int, kind: str) -> Sequence[Match]: ...
    def stats(self) -> Stats: ...
    def warm(self, most: int) -> int: ...
    def plan(
        self, question: str, tokens: int | None, segments: int | None, method: str | None
    ) -> Plan: ...


class RobotMemory:
    """One robot's.

    planning: its memory, open for longer than this. domain: the meaning of what is said.
    task_records: tasks that are remembered. warn: takes the kind of a fault and a line about it.
    """

    def __init__(
        self,
        planning: PlansWithMemory,
        domain: Domain,
        task_records: int,
        warn: Callable[[str, str], None],
    ) -> None:
        self._planning, self._warn = planning, warn
        self._domain, self._task_records, self._began = domain, task_records, 0
        self._answers: dict[int, str] = {}  # of streams that speak
        self._computes = Lock()  # one thread plans or computes ahead
        self.changed = True  # since all that was missing was computed

    @cached_property
    def _notes(self) -> NoteTaker:
        """Continues from what is remembered, once that is known. Raises MemoryFault."""
        made = NoteTaker(self._domain, self._task_records, self._planning.tasks())
        made.begin(self._began)
        return made

    def close(self) -> None:
        """Wait for the plan that is being made."""
        with self._computes:
            pass

    def begin(self, stamp: int) -> None:
        """What was said before is no answer any more, and what was seen before, ns, is no news."""
        self._answers.clear()
        self._began = stamp
        if '_notes' in vars(self):  # else they begin with what is noted first
            self._notes.begin(stamp)

    @property
    def stats(self) -> Stats:
        """As it is now."""
        return self._planning.stats()

    @property
    def verbs(self) -> Mapping[str, tuple[type, Callable]]:
        """The services `memory/VERB`: type and answer. `plan` waits."""
        return {
            'upsert': (MemoryUpsert, self._upsert),
            'remove': (MemoryRemove, self._remove),
            'query': (MemoryQuery, self._query),
            'plan': (MemoryPlan, self._plan),
            'stats': (MemoryStats, self._stats),
        }

    # ------------------------------------------------------------------ what is learnt

    def observe(self, message: MemorySegment) -> None:
        """What any node observes."""
        self._remember(lambda: [(message.id, message.kind, message.text)])

    def hear(self, message: TextDelta) -> None:
        """What the robot says."""
        answer = self._answers.pop(message.stream, '') + message.text
        if not message.finished:
            self._answers[message.stream] = answer
        elif message.reason == 'eos':
            stamp = conversions.nanoseconds(message.header.stamp)
            self._remember(lambda: self._notes.hear(message.query, answer, stamp))

    def tell(self, instruction: str, stamp: int) -> None:
        """What the robot is told, at ns of the ROS clock; again: nothing changes."""
        self._remember(lambda: self._notes.tell(instruction, stamp))

    def follow(self, message: MissionState) -> None:
        """How its mission stands: while one runs, the mission says what is seen."""
        stamp = conversions.nanoseconds(message.header.stamp)

        def followed() -> list[Draft]:
            self._notes.follow_mission(message.running, stamp)
            return []

        self._remember(followed)

    def _remember(self, noted: Callable[[], list[Draft]]) -> None:
        try:
            if (drafts := noted()) and self._planning.is_offered:
                self._planning.upsert(*drafts)
                self.changed = True
        except MemoryFault as fault:
            self._warn('segment', f'not remembered: {fault}')

    def advance(self) -> None:
        """A step of the world has passed."""
        try:
            if self._planning.advance():
                self.changed = True
        except MemoryFault as fault:
            self._warn('advance', f'a step of the world was not noted: {fault}')

    def precompute(self) -> None:
        """Some KV that is missing, unless a plan is being made."""
        if not self._computes.acquire(blocking=False):
            return
        try:
            self.changed = False  # first: what is learnt meanwhile is missing
            # Without room, what is computed now would only replace what was computed before.
            if self._planning.has_room and self._planning.warm(PRECOMPUTED):
                self.changed = True
        except (MemoryFault, OverBudget) as fault:
            self._warn('precompute', f'not precomputed: {fault}')
        finally:
            self._computes.release()

    # ------------------------------------------------------------------ services

    def _upsert(self, request: MemoryUpsert.Request, response: MemoryUpsert.Response) -> None:
        drafts = [draft for segment in request.segments for draft in self._drafts(segment)]
        changes = self._planning.upsert(*drafts)
        self.changed = True
        changed = [change for change in changes if change.changed]
        response.segments = [conversions.segment_message(change.segment) for change in changes]
        response.changed = len(changed)
        response.lost = len({key for change in changed for key in change.lost})
        response.message = (
            f'{response.changed} of {len(changes)} segments are new or other; the KV of '
            f'{response.lost} units is invalid'
        )

    def _drafts(self, segment: MemorySegment) -> list[Draft]:
        """Of one segment; a task without an id gets its number here."""
        if segment.kind == 'task' and not segment.id:
            return self._notes.conclude(segment.text.strip())
        return [(segment.id, segment.kind, segment.text)]

    def _remove(self, request: MemoryRemove.Request, response: MemoryRemove.Response) -> None:
        response.lost = len(self._planning.remove(request.id).lost)
        self.changed = True
        response.message = (
            f'{request.id} is forgotten, and the KV of {response.lost} units with it'
        )

    def _query(self, request: MemoryQuery.Request, response: MemoryQuery.Response) -> None:
        found = self._planning.query(request.question, request.segments, request.kind)
        response.segments = [conversions.segment_message(match.segment) for match in found]
        response.scores = [match.score for match in found]
        response.joint = [match.static for match in found]
        response.message = '; '.join(match.segment.text for match in found) or 'nothing'

    def _plan(self, request: MemoryPlan.Request, response: MemoryPlan.Response) -> None:
        with self._computes:
            plan = self._planning.plan(
                request.question,
                request.tokens or None,
                request.segments or None,
                request.method or None,
            )
        conversions.fill_plan(plan, response)
        response.message = _about(plan)

    def _stats(self, _: MemoryStats.Request, response: MemoryStats.Response) -> None:
        stats = self._planning.stats()
        conversions.fill_memory_stats(stats, response)
        response.message = (
            f'{stats.segments} segments in {stats.static} static and {stats.dynamic} dynamic '
            f'groups; KV of {stats.kept} units, {stats.bytes / MIB:.1f} MiB; {stats.plans} plans'
        )


def _about(plan: Plan) -> str:
    return (
        f'{len(plan.segments)} in view, {plan.computed_share:.0%} of {plan.tokens} '
        f'tokens computed, the first after {plan.seconds_first_token * 1e3:.0f} ms'
    )


def can_plan(node: SuiteNode) -> bool:
    """Whether there is a planner for a node of memory; it says why not."""
    if node.get_parameter('planner').value:
        return True
    try:
        contract = node.params.read(SuiteParams).embodiment().contract
        planner_folder('', contract.language.planner)
    except ValueError as error:
        node.log_info('planner', f'memory stays unconfigured: {reason(error)}')
        return False
    return True


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
        path = planner_folder(params.planner, self.embodiment.contract.language.planner)
        planning = self._release.enter_context(
            open_planning(
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
