"""The memory node: stores observations and results, and plans with them.

The module knows services, topics and parameters, but not how KV is stored or reused. A separate
thread serves the node, because its callbacks wait for files and for the engine thread.

The planner computes on the engine thread, in short steps: some tokens of a layer, or one token of
an answer. A step begins only in the idle time of the engine, so an action waits for one step at
most. A separate torch thread would compete with the actions for cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from std_msgs.msg import String

from embodied_kv.kv.budget import OverBudgetError
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.memory.encoder import encoder
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.model.planner_checkpoint import load_planner
from embodied_kv.msg import MemorySegment, MissionState, TextDelta
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import SuiteParams, param
from embodied_kv.planning.config import MIB, MemoryParams, PlanningConfig
from embodied_kv.planning.domain import Draft, load_domain
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.notes import NoteTaker
from embodied_kv.planning.planner_rows import PlannerRows
from embodied_kv.planning.planning import Planning, open_planning, planner_folder
from embodied_kv.session.participant import Participant
from embodied_kv.srv import MemoryPlan, MemoryQuery, MemoryRemove, MemoryStats, MemoryUpsert
from embodied_kv.text import reason

if TYPE_CHECKING:
    from embodied_kv.serving.remote_policy.remote_planning import RemotePlanning

PRECOMPUTED = 4  # maximum number of units whose KV is computed at once
PRECOMPUTE_EVERY = 0.5  # s
SET_BACK = JumpThreshold(min_forward=None, min_backward=Duration(seconds=-0.5))

T = TypeVar('T')


@dataclass(frozen=True)
class BranchParams:
    """The row of the planner for branches of plans."""

    plan_forks: bool = param(
        True,
        "Allocate a second row of the planner's KV, in which capsule/fork continues plans",
    )


class Memory(SuiteNode, Participant):
    """Serves `memory/*`, and stores observations, instructions, answers and mission results."""

    may_wait = True

    def __init__(self, **arguments: object) -> None:
        super().__init__('memory', MemoryParams, PlanningConfig, BranchParams, **arguments)

    @property
    def autostart(self) -> bool:
        """Return False without a planner in the parameter or contract; the log has the reason."""
        if not super().autostart or self.get_parameter('planner').value:
            return super().autostart
        try:
            planner_folder(
                '', self.params.read(SuiteParams).embodiment().contract.language.planner
            )
        except ValueError as error:
            self.log_info('planner', f'memory stays unconfigured: {reason(error)}')
            return False
        return True

    def setup(self) -> None:
        params = self.params.read(MemoryParams)
        self._domain = load_domain(self.embodiment.contract.language)
        self._planning, self._task_records = self._open(), params.max_task_records
        self._notes_taken: NoteTaker | None = None
        self._answers: dict[int, str] = {}  # by stream, until it ends
        self._began = 0  # ns, of the ROS clock
        self._missing_kv = ''  # why KV was not computed in advance at the last attempt
        self._computes = Lock()  # held while a thread plans or precomputes
        self._release.callback(self._await_plan)
        self.serve_all(
            'memory',
            {
                'upsert': (MemoryUpsert, self._upsert),
                'remove': (MemoryRemove, self._remove),
                'query': (MemoryQuery, self._query),
                'plan': (MemoryPlan, self._plan),
                'stats': (MemoryStats, self._stats),
            },
        )
        self.subscribe(MemorySegment, 'memory/observe', self._on_observation, qos.MEMORY)
        self.subscribe(TextDelta, 'language/text', self._on_text, qos.TEXT)
        self.subscribe(MissionState, 'mission/state', self._on_mission, qos.STATUS, always=True)
        self.subscribe(String, 'instruction', self._on_instruction, qos.INSTRUCTION)
        if params.world_step_seconds:
            self.every(params.world_step_seconds, self._advance)
        jumps = self.get_clock().create_jump_callback(SET_BACK, post_callback=self._begin)
        self._release.callback(jumps.unregister)
        self.every(PRECOMPUTE_EVERY, self._precompute)

    def _open(self) -> Planning | RemotePlanning:
        """Open the planning, until cleanup. Raises ValueError, RobotMemoryError."""
        params = self.params.read(MemoryParams)
        name, say = self.embodiment.contract.language.planner, partial(self.log_info, 'planner')
        offline = 'an arm is armed; disarm it first' if self.host.is_held else ''
        path = planner_folder(params.planner, name, say, offline)
        planner = load_planner(path, device=self.host.engine.config.device)
        rows = PlannerRows(planner.model, 1 + self.params.read(BranchParams).plan_forks)
        self.host.kv_budget.join(rows)
        self._release.callback(self.host.kv_budget.leave, rows)
        planning = self._release.enter_context(
            open_planning(
                planner,
                encoder(params.text_encoder),
                params,
                self.params.read(PlanningConfig),
                self.robot,
                self._step,
                self.host.kv_budget,
                rows,
                longest_step=self.host.engine.budget.longest,
            )
        )
        session, part = self.host.session(self.robot), MemoryPart(planning)
        session.register(part)
        self._release.callback(session.unregister, part)
        return planning

    def _step(self, work: Callable[[], T]) -> T:
        return self.host.device.background(work, f'plan {self.robot}').result()

    def _await_plan(self) -> None:
        with self._computes:
            pass

    def start(self) -> None:
        self._begin()
        self.host.session(self.robot).participants.join(self)

    def stop(self) -> None:
        self.host.session(self.robot).participants.leave(self)

    def on_resumed(self, streams: Sequence[DecodeStream]) -> None:
        """Begin the answers of resumed streams, whose deltas have the rest of their texts."""
        if streams:  # a robot without a model has none, and no engine
            detokenizer = self.host.engine.detokenizer
            self._answers |= {stream.id: detokenizer.said(stream) for stream in streams}

    def _begin(self, *_: object) -> None:
        """Ignore answers from before now; also called when the clock is set back."""
        self._answers.clear()
        self._began = self.get_clock().now().nanoseconds
        if self._notes_taken is not None:
            self._notes_taken.begin(self._began)

    @property
    def _notes(self) -> NoteTaker:
        """Return the note taker; it continues from the stored tasks. Raises RobotMemoryError."""
        if self._notes_taken is None:
            made = NoteTaker(self._domain, self._task_records, self._planning.tasks())
            made.begin(self._began)
            self._notes_taken = made
        return self._notes_taken

    # ------------------------------------------------------------------ observations

    def _on_observation(self, message: MemorySegment) -> None:
        self._remember(lambda: [(message.id, message.kind, message.text)])

    def _on_text(self, message: TextDelta) -> None:
        answer = self._answers.pop(message.stream, '') + message.text
        if not message.finished:
            self._answers[message.stream] = answer
        elif message.reason == 'eos':
            stamp = conversions.nanoseconds(message.header.stamp)
            self._remember(lambda: self._notes.hear(message.query, answer, stamp))

    def _on_instruction(self, message: String) -> None:
        now = self.get_clock().now().nanoseconds
        self._remember(lambda: self._notes.tell(message.data, now))

    def _on_mission(self, message: MissionState) -> None:
        """Note whether a mission runs, because missions store observations themselves."""
        stamp = conversions.nanoseconds(message.header.stamp)
        self._remember(lambda: self._notes.follow_mission(message.running, stamp))

    def _remember(self, noted: Callable[[], list[Draft] | None]) -> None:
        try:
            if (drafts := noted()) and self._planning.is_offered:
                self._planning.upsert(*drafts)
        except RobotMemoryError as fault:
            self.warn_throttled('segment', f'not remembered: {fault}')

    def _advance(self) -> None:
        try:
            self._planning.advance()
        except RobotMemoryError as fault:
            self.warn_throttled('advance', f'a step of the world was not noted: {fault}')

    def _precompute(self) -> None:
        """Compute some missing KV, unless a plan is being made."""
        if not self.params.read(MemoryParams).precompute:
            return
        if not self._computes.acquire(blocking=False):
            return
        try:
            # Without room, new KV would only replace KV that was computed before.
            if self._planning.has_room:
                self._planning.warm(PRECOMPUTED)
            self._missing_kv = ''
        except (RobotMemoryError, OverBudgetError) as fault:
            self._missing_kv = f'not precomputed: {fault}'
            self.warn_throttled('precompute', self._missing_kv)
        finally:
            self._computes.release()

    # ------------------------------------------------------------------ services

    def _upsert(self, request: MemoryUpsert.Request, response: MemoryUpsert.Response) -> None:
        drafts: list[Draft] = []
        for segment in request.segments:
            if segment.kind == 'task' and not segment.id:  # its number is assigned here
                drafts += self._notes.conclude(segment.text.strip())
            else:
                drafts.append((segment.id, segment.kind, segment.text))
        changes = self._planning.upsert(*drafts)
        changed = [change for change in changes if change.changed]
        response.segments = [conversions.segment_message(change.segment) for change in changes]
        response.changed = len(changed)
        response.units_invalidated = len({key for change in changed for key in change.lost})
        response.message = (
            f'{response.changed} of {len(changes)} segments are new or changed; the KV of '
            f'{response.units_invalidated} units is invalid'
        )

    def _remove(self, request: MemoryRemove.Request, response: MemoryRemove.Response) -> None:
        lost = len(self._planning.remove(request.id).lost)
        response.units_invalidated = lost
        response.message = f'{request.id} is removed, with the KV of {lost} units'

    def _query(self, request: MemoryQuery.Request, response: MemoryQuery.Response) -> None:
        found = self._planning.query(request.question, request.segments, request.kind)
        response.segments = [conversions.segment_message(match.segment) for match in found]
        response.scores = [match.score for match in found]
        response.grouped = [match.static for match in found]
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
        response.message = (
            f'{len(plan.segments)} segments in view, {plan.computed_share:.0%} of {plan.tokens} '
            f'tokens computed, the first after {plan.seconds_first_token * 1e3:.0f} ms'
        )

    def _stats(self, _: MemoryStats.Request, response: MemoryStats.Response) -> None:
        stats = self._planning.stats()
        conversions.fill_memory_stats(stats, response)
        response.message = (
            f'{stats.segments} segments in {stats.static} static and {stats.dynamic} dynamic '
            f'groups; KV of {stats.kept} units, {stats.bytes / MIB:.1f} MiB; {stats.plans} plans'
        )

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        stats = self._planning.stats()
        values = {
            'segments': stats.segments,
            'groups': f'{stats.static} static, {stats.dynamic} dynamic',
            'units with KV': f'{stats.kept}, {stats.bytes / MIB:.1f} MiB',
            'cached (MiB)': f'{stats.cached_bytes / MIB:.1f}',
            'plans': stats.plans,
            'saved by keep (s)': f'{stats.seconds_saved:.1f}',
        }
        if self.warning_counts['segment']:
            return WARN, 'not all is remembered', values
        if self._missing_kv:  # it is tried again
            return WARN, self._missing_kv, values
        return OK, f'memory: {stats.segments} segments', values
