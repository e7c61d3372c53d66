"""The row of the memory planner: restored from a capsule, or computed again.

Knows a planner over memory, and its part of a capsule. Does not know tables or files. A plan is
frozen after its first token. A restore copies the bytes of the row. Computing the row again is a
plan up to that token: by KEEP from the stored KV of its units, or in full from text. Every run
asserts that the answers agree token for token.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.capsule.figures import MB
from benchmarks.common.report import once
from benchmarks.memory.settings import load_settings
from benchmarks.memory.story import draw_story
from embodied_kv.capsule.capsule import Boundary, Capsule, FrozenPart
from embodied_kv.capsule.disk import Disk
from embodied_kv.model.planner_checkpoint import LoadedPlanner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.planning import Planning

CONFIG = PlanningConfig(reuse_method='keep', min_group_similarity=0.9, max_answer_tokens=4)
NAME, FINGERPRINT = 'row', 'bench'


def planner_rows(
    planner: LoadedPlanner, segments: Sequence[int], repeats: int
) -> list[dict[str, float]]:
    """Return a row per number of segments in memory, all of them in view of the planner."""
    return [_rows(planner, count, repeats) for count in segments]


def _rows(planner: LoadedPlanner, count: int, repeats: int) -> dict[str, float]:
    """Return medians in ms: the time to the first token by each way, and that of the copies."""
    taken: list[FrozenPart] = []
    times = defaultdict(list)

    def step(work):
        result = work()
        held = stack and planning.row.held
        if held and not taken:
            times['snapshot'].append(once(lambda: taken.append(part.freeze())))
        return result

    stack: list[object] = []
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory()))
        planning = opened.enter_context(Planning(planner, folder / 'memory', CONFIG, step=step))
        part, disk = MemoryPart(planning), Disk(folder / 'capsules')
        stack.append(planning)
        settings = load_settings()
        story = draw_story(settings.world, (settings.seed, 0), 1)
        question = story.moments[0].question
        planning.upsert(*((f.id, f.kind, f.text) for f in story.first[:count]))
        planning.warm()
        planning.plan(question)  # warms up
        for _ in range(repeats):
            taken.clear()
            times['keep'].append(planning.plan(question).seconds_first_token)
            (frozen,), last = taken, planning.last
            times['full'].append(planning.plan(question, method='full').seconds_first_token)
            if NAME in disk.names():
                disk.drop(NAME)
            disk.save(_capsule(frozen))
            for way in ('restored', 'from_disk'):
                read, took = (frozen, 0.0) if way == 'restored' else _loaded(disk)
                took += (copied := once(partial(part.resume, read)))
                times[way].append(took + planning.plan(question).seconds_first_token)
                assert planning.last == last, 'a plan that came back says something else'
            times['restore'].append(copied)
        row = dict(segments=count, tokens=len(last.prompt), capsule_mb=_capsule(frozen).bytes / MB)
    row |= {f'{name}_ms': statistics.median(values) * 1e3 for name, values in times.items()}
    return row | dict(
        speedup=row['keep_ms'] / row['restored_ms'],
        speedup_from_disk=row['keep_ms'] / row['from_disk_ms'],
    )


def _capsule(frozen: FrozenPart) -> Capsule:
    return Capsule(
        NAME, Boundary('bench', 0, 0), FINGERPRINT, frozen.tensors, {NAME: frozen.facts}
    )


def _loaded(disk: Disk) -> tuple[FrozenPart, float]:
    """Return what the file contains, and the seconds that reading took."""
    began = time.perf_counter()
    capsule = disk.load(NAME, FINGERPRINT)
    return FrozenPart(capsule.tensors, capsule.facts[NAME]), time.perf_counter() - began
