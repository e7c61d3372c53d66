"""Run all ways through the same stories: the same updates of memory, and the same questions.

Ways take turns at every question, forwards and backwards; they share no KV. KV that the updates
before a question invalidated is recomputed when the question needs it, within the measured time.
After its answer every way computes the KV that it still lacks (`idle`), as on a robot between two
plans; it does the same after each step before the first question. Memory is stored in files in RAM
if there is room for them, as the paper stores KV: a disk would add the time of its syncs to
everything that is recomputed. Knows ways and stories. Does not know tables.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.progress import Progress

from benchmarks.memory.invalidation import PREFIX
from benchmarks.memory.settings import Settings, Side
from benchmarks.memory.spans import COMPUTE, Timeline
from benchmarks.memory.story import Facts, Moment, draw_story
from benchmarks.memory.ways import BenchPlanning, TimedPlan, Way, open_way
from embodied_kv.model.planner_checkpoint import LoadedPlanner

RAM = '/dev/shm'
ROOM = 2**31  # bytes: twice the memories of 30 ways


@dataclass(frozen=True, eq=False)
class Reply:
    """The answer of one way to one question, and its cost.

    retrieved: number of segments requested. story, number: which question. told: whether all facts
    that decide it were in view. outdated: number of segments in view whose text is not current.
    lost: tokens whose KV the updates before the question invalidated; fresh: tokens of units whose
    KV was computed for it; idle: tokens computed after the question before it.
    """

    way: str
    retrieved: int
    story: int
    number: int
    kind: str
    right: bool
    stale: bool
    told: bool
    outdated: int
    lost: int
    fresh: int
    idle: int
    plan: TimedPlan

    @property
    def computed_share(self) -> float:
        """Return the tokens computed in all layers, with fresh units, as a share of the prompt."""
        plan = self.plan
        return (sum(plan.computed) / len(plan.computed) + self.fresh) / plan.tokens


@dataclass
class Asked:
    """A way with its memory.

    lost, fresh: the counts at the last call of `_count`. idle: tokens that `settle` computed last.
    """

    way: Way
    planning: BenchPlanning
    lost: int = 0
    fresh: int = 0
    idle: int = 0

    def learn(self, facts: Facts, side: Side) -> None:
        """Add the updates of one step, or the initial facts, to memory."""
        width = side.segment_tokens - 1  # a segment begins with a line break; a byte is a token
        segments = [(fact.id, fact.kind, fact.text.ljust(width, '.')) for fact in facts]
        self.planning.upsert(*segments)
        self.planning.advance()

    def settle(self) -> None:
        """Compute and count all missing KV that the way stores."""
        if self.way.construction not in ('', PREFIX):
            self.planning.warm()
        _, self.idle = self._count()

    def ask(self, moment: Moment, retrieved: int, story: int, number: int) -> Reply:
        """Ask one question, and return the reply. Raises RuntimeError if the plan is retried."""
        plan = self.planning.plan(moment.question, segments=retrieved)
        if plan.retries:
            raise RuntimeError(f'{self.way.name}: KV went while nobody changed memory')
        lost, fresh = self._count()
        texts = {s.id: s.text.rstrip('.') for s in self.planning.memory.store.list()}
        return Reply(
            self.way.name,
            retrieved,
            story,
            number,
            moment.kind,
            moment.right(plan.text),
            moment.stale(plan.text),
            moment.needs <= {*plan.segments},
            sum(texts[id] != moment.known[id] for id in plan.segments),
            lost,
            fresh,
            self.idle,
            plan,
        )

    def _count(self) -> tuple[int, int]:
        """Return the tokens lost and the tokens computed since the last call."""
        before = self.lost, self.fresh
        self.lost, self.fresh = self.planning.lost, self.planning.fresh_tokens
        return self.lost - before[0], self.fresh - before[1]


def ask_all(
    ways: Sequence[Way],
    planner: LoadedPlanner,
    settings: Settings,
    side: Side,
    retrieved: Sequence[int],
    bar: Progress,
    title: str,
    idle: bool = True,
) -> list[Reply]:
    """Return the replies of all ways to all questions of a side, for each number of segments.

    retrieved: numbers of segments. idle: whether there is time between a question and the next
    updates to compute missing KV.
    """
    total = len(retrieved) * side.households * (side.warm + side.questions)
    task, replies = bar.add_task(title, total=total), []
    for count in retrieved:
        for number in range(side.households):
            for some in _follow(ways, planner, settings, side, count, number, idle):
                replies += some
                bar.advance(task)
    return replies


def _follow(
    ways: Sequence[Way],
    planner: LoadedPlanner,
    settings: Settings,
    side: Side,
    retrieved: int,
    number: int,
    idle: bool,
) -> Iterator[list[Reply]]:
    """Yield the replies to each question of a story, in the order of ways; none in warm-up."""
    story = draw_story(settings.world, (settings.seed, number), side.warm + side.questions)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=ram())))
        asked = []
        for i, way in enumerate(ways):
            planning = open_way(way, planner, folder / str(i), settings, side)
            asked.append(Asked(way, stack.enter_context(planning)))
        for one in asked:
            for facts in (story.first, *story.before):
                one.learn(facts, side)
                one.settle()
        for index, moment in enumerate(story.moments):
            for one in asked:
                for facts in moment.updates:
                    one.learn(facts, side)
            turn = asked if index % 2 else asked[::-1]
            found = [one.ask(moment, retrieved, number, index) for one in turn]
            yield (found if index % 2 else found[::-1]) if index >= side.warm else []
            for one in asked if idle else ():
                one.settle()


def ram() -> str | None:
    """Return a folder in RAM with room for the memories of a run, None if there is none."""
    return RAM if os.path.isdir(RAM) and shutil.disk_usage(RAM).free >= ROOM else None


def of(replies: Sequence[Reply], way: str, retrieved: int | None = None) -> list[Reply]:
    """Return the replies of one way, in the order of questions."""
    return [r for r in replies if r.way == way and retrieved in (None, r.retrieved)]


def waiting(timeline: Timeline) -> float:
    """Return the seconds in which no layer was computed, until the last one began."""
    last = max((span.start for span in timeline.lane(COMPUTE)), default=0.0)
    return sum(end - start for start, end in timeline.bubbles(COMPUTE) if end <= last)
