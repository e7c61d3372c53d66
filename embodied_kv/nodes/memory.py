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
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from std_msgs.msg import String

from embodied_kv.memory.encoder import encoder
from embodied_kv.memory.segment import MemoryFault
from embodied_kv.model.planner_checkpoint import bundled_planner, load_planner
from embodied_kv.msg import MemorySegment, TextDelta
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import SuiteParams, param
from embodied_kv.planning.config import MIB, PlanningConfig
from embodied_kv.planning.plan import Plan
from embodied_kv.planning.planning import Planning
from embodied_kv.sim.language import HELD
from embodied_kv.sim.notes import Draft, NoteTaker
from embodied_kv.srv import MemoryPlan, MemoryQuery, MemoryRemove, MemoryStats, MemoryUpsert
from embodied_kv.text import reason

T = TypeVar('T')
PRECOMPUTED = 4  # units between two requests
PRECOMPUTE_EVERY = 0.5  # s


@dataclass(frozen=True)
class MemoryParams:
    """Where memory is kept, who plans with it, and what is remembered unasked."""

    folder: str = param(
        '~/.ros/embodied_kv/memory',
        "Of the memory; a suite with a namespace has a folder of that name in it; '' forgets all "
        'at cleanup',
    )
    planner: str = param('', "Folder of a planner's weights and tokenizer; '' is the contract's")
    discard_foreign_kv: bool = param(
        False,
        'Where the folder holds KV of another planner, drop that and keep the segments',
        old='renew',
    )
    encoder: str = param(
        'hashing',
        'Of meaning: hashing, minilm, auto, or a folder of a sentence-transformers model',
    )
    step_seconds: float = param(
        5.0, 'How long a step of the world is, s; 0: steps do not pass', range=(0.0, 1e6)
    )
    precompute: bool = param(
        True, 'Compute missing KV before a plan asks for it', 'live', old='ahead'
    )
    held_question: str = param(
        HELD, "What language answers to this is what the robot holds; '' remembers none"
    )
    task_records: int = param(
        48, 'Tasks that are remembered, the oldest go; 0: none', range=(0, 100_000)
    )


class Memory(SuiteNode):
    """Answers `memory/*`, and remembers what comes on `memory/observe`."""

    may_wait = True

    def __init__(self, **arguments: object) -> None:
        super().__init__('memory', MemoryParams, PlanningConfig, **arguments)

    @property
    def autostart(self) -> bool:
        """Not without a planner: that of the parameter, or of the contract."""
        if not super().autostart or self.get_parameter('planner').value:
            return super().autostart
        try:
            bundled_planner(self._own_planner())
        except ValueError as error:
            self.log_info('planner', f'memory stays unconfigured: {reason(error)}')
            return False
        return True

    def _own_planner(self) -> str:
        """The contract's. Raises ValueError where it names none."""
        name = self.params.read(SuiteParams).embodiment().contract.language.planner
        if not name:
            raise ValueError('the contract names no planner, language: {planner: …}')
        return name

    def setup(self) -> None:
        params, config = self.params.read(MemoryParams), self.params.read(PlanningConfig)
        path = params.planner or bundled_planner(self._own_planner())
        self._planning = Planning(
            load_planner(Path(path).expanduser(), device=self.host.engine.config.device),
            self._folder(params.folder),
            config,
            encoder(params.encoder),
            self._step,
            params.discard_foreign_kv,
        )
        self._release.callback(self._planning.close)
        known = [(s.id, s.step) for s in self._planning.memory.store.list('task')]
        self._notes = NoteTaker(params.held_question, params.task_records, known)
        self._answers: dict[int, str] = {}  # of streams that speak
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
        self.subscribe(MemorySegment, 'memory/observe', self._on_segment, qos.MEMORY)
        self.subscribe(TextDelta, 'language/text', self._on_text, qos.TEXT)
        self.subscribe(String, 'instruction', self._on_instruction, qos.INSTRUCTION)
        if params.step_seconds:
            self.every(params.step_seconds, self._planning.advance)
        self.every(PRECOMPUTE_EVERY, self._precompute)

    def _folder(self, folder: str) -> Path:
        if folder:
            return Path(folder).expanduser() / self.robot.strip('/')
        return Path(self._release.enter_context(TemporaryDirectory()))

    def start(self) -> None:
        self._answers.clear()

    def _step(self, work: Callable[[], T]) -> T:
        return self.host.device.background(work).result()

    # ------------------------------------------------------------------ what is learnt

    def _on_segment(self, message: MemorySegment) -> None:
        self._remember([(message.id, message.kind, message.text)])

    def _on_text(self, message: TextDelta) -> None:
        answer = self._answers.pop(message.stream, '') + message.text
        if not message.finished:
            self._answers[message.stream] = answer
        elif message.reason == 'eos':
            stamp = conversions.nanoseconds(message.header.stamp)
            self._remember(self._notes.hear(message.query, answer, stamp))

    def _on_instruction(self, message: String) -> None:
        self._remember(self._notes.tell(message.data, self.get_clock().now().nanoseconds))

    def _remember(self, drafts: list[Draft]) -> None:
        try:
            if drafts:
                self._planning.upsert(*drafts)
        except MemoryFault as fault:
            self.warn_throttled('segment', f'not remembered: {fault}')

    def _precompute(self) -> None:
        try:
            if self.params.read(MemoryParams).precompute:
                self._planning.warm(PRECOMPUTED)
        except MemoryFault as fault:
            self.warn_throttled('precompute', f'not precomputed: {fault}')

    # ------------------------------------------------------------------ services

    def _upsert(self, request: MemoryUpsert.Request, response: MemoryUpsert.Response) -> None:
        drafts = [draft for segment in request.segments for draft in self._drafts(segment)]
        changes = self._planning.upsert(*drafts)
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

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        stats = self._planning.stats()
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


def _about(plan: Plan) -> str:
    return (
        f'{len(plan.segments)} in view, {plan.computed_share:.0%} of {plan.tokens} '
        f'tokens computed, the first after {plan.seconds_first_token * 1e3:.0f} ms'
    )
