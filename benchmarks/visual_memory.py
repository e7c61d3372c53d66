"""Cost of memory rows: a chunk, a decode step and a prefill, by number of rows and keep ratio.

An engine for each keep ratio has a robot with 0 to 8 memory rows. All numbers of rows take turns;
a ratio is that of two times of one turn, in processor time. Without memory rows, chunks and texts
read the prefix row itself.

Targets: a memory row adds at most 4% to an Euler step and to a decode step with a tenth of the
tokens, and at most 10% with a quarter; it adds nothing to a prefill; and all rows together take
less than a tenth of the time to encode the same frames again.

Physics: attention reads (1 + rows x ratio) prefixes, but the weights are read once, so a step
grows more slowly. The copy of the frame behind its memory rows is one pass over their bytes; it is
part of the prefill here.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.common.scene import FullPolicy, observation
from embodied_kv.config import preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.frame_memory import MemoryRow
from embodied_kv.model.dtype import served

T = TypeVar('T')
ROWS, RATIOS = (0, 1, 2, 4, 8), (0.1, 0.25)
STREAMS, STEPS, EULER_STEPS = 4, 8, 4
MOST = {0.1: 1.04, 0.25: 1.10}  # of a step, for each row
ENCODING = 0.1  # of the time to encode the frames again
PHASES = ('prefill', 'Euler step', 'decode step')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument('--preset', default='tabletop_long')
    parser.add_argument('--turns', type=int, default=12)
    parser.add_argument('--rows', type=int, nargs='+', default=list(ROWS))
    parser.add_argument('--quick', action='store_true', help='a tiny model and two turns')


def run(args: argparse.Namespace) -> dict:
    """Measure in turns, print the table, and return all figures."""
    torch.set_num_threads(1)
    name, turns = ('tiny', 2) if args.quick else (args.preset, args.turns)
    policy = FullPolicy.random(served(preset(name), 'cpu'))
    counts = sorted({0, *args.rows})
    table = [row for ratio in RATIOS for row in _rows(policy, ratio, counts, turns)]
    if not args.json:
        report.show('visual memory', table)
    held = [row for row in table if row['rows']]
    return dict(
        preset=name,
        turns=turns,
        quick=args.quick,
        rows=table,
        steps_hold=all(float(row['each']) <= MOST[row['ratio']] - 1 for row in held),
        encoding_holds=all(float(row['of encoding again']) < ENCODING for row in held),
    )


def _rows(policy: FullPolicy, ratio: float, counts: list[int], turns: int) -> list[dict]:
    """Return a table row for each number of memory rows of a keep ratio."""
    engine = _engine(policy, ratio, max(counts))
    kept = remembered(engine, max(counts))
    times: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    for turn in range(turns + 1):  # the first one warms up
        for count in counts if turn % 2 else reversed(counts):
            engine.memory.replace('', kept[:count])
            found = _measured(engine, turn, count)
            if turn:
                times[count].append(found)
    return [_row(ratio, count, times) for count in counts]


def _row(ratio: float, count: int, times: dict[int, list[dict[str, float]]]) -> dict:
    turns = list(zip(times[count], times[0], strict=True))
    own = {phase: statistics.median(turn[phase] for turn in times[count]) for phase in PHASES}
    ratios = {p: statistics.median(one[p] / base[p] for one, base in turns) for p in PHASES}
    row: dict = dict(ratio=ratio, rows=count)
    row |= {f'{phase} (ms)': own[phase] for phase in PHASES}
    row |= {f'{phase}, ratio': value for phase, value in ratios.items()}
    if count:
        row['each'] = (max(ratios['Euler step'], ratios['decode step']) - 1) / count
        euler = 'Euler step'  # of a chunk, which has several
        more = [
            one['prefill'] - base['prefill'] + EULER_STEPS * (one[euler] - base[euler])
            for one, base in turns
        ]
        row['of encoding again'] = statistics.median(more) / (count * own['prefill'])
    return row


def _engine(policy: FullPolicy, ratio: float, rows: int) -> Engine:
    config = EngineConfig(
        streams=STREAMS,
        euler_steps=EULER_STEPS,
        compressed_rows=0,
        memory_rows=max(1, rows),
        memory_keep_ratio=ratio,
        memory_interval=3600.0,
        time_budget=False,
    )
    return Engine(policy, config)


def remembered(engine: Engine, rows: int) -> list[MemoryRow]:
    """Return memory rows of different frames: each frame ends its instruction."""
    for number in range(rows + 1):
        seen = observation(engine.policy.config, number)
        engine.prefill([replace(seen, instruction=f'{seen.instruction} {number}')])
    return list(engine.memory.rows(''))


def _measured(engine: Engine, turn: int, count: int) -> dict[str, float]:
    """Return the ms of each phase of a frame with so many memory rows."""
    if (current := engine.kv.frames.current('')) is not None:
        engine.kv.frames.retire(current)  # so that it does not become a memory row
    seen = observation(engine.policy.config, 100 + turn)
    (handle,), prefill = _timed(lambda: engine.prefill([seen]))
    assert len(engine.memory.rows('')) == count
    with engine.kv.acquire(handle) as lease:
        chunks = [_timed(lambda: engine.denoise([lease], [math.inf]))[1] for _ in range(STEPS)]
    for _ in range(STREAMS):
        engine.open(handle, 'Subtask:', max_tokens=STEPS + 2)
        engine.decode()
    steps = [_timed(engine.decode)[1] for _ in range(STEPS)]
    for stream in engine.kv.streams.live():
        engine.cancel(stream.id)
    engine.deltas()
    return {
        'prefill': prefill,
        'Euler step': statistics.median(chunks) / EULER_STEPS,
        'decode step': statistics.median(steps),
    }


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return the result of work, and its processor time, ms."""
    began = time.process_time()
    result = work()
    return result, 1e3 * (time.process_time() - began)


main = command('visual_memory', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
