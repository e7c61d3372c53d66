"""Compiled steps with compressed streams: a decode step and a chunk, by number of such streams.

Three engines of one policy answer questions about four frames: compiled and started with the keep
ratio, so that compiled code reads copies; compiled and started without compression, so that a step
with a copy is eager; and eager. They take turns; a ratio is that of two times of one turn, in
processor time.

Target: a compiled step with compressed streams takes at most 1.05 times as long as one without.

Physics: compiled code gathers a whole row and a copy for each stream. With a keep ratio of 0.1
it reads a tenth more KV, whichever of the two a stream uses.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator
from unittest import mock

import torch

from benchmarks.common.command import command
from benchmarks.common.scene import FullPolicy, observation
from benchmarks.compress.policy import settings, show
from embodied_kv.config import preset
from embodied_kv.engine import shapes
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.shapes import Kind
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.dtype import served
from embodied_kv.runtime.graph_cache import Shape

STREAMS, KEEP_RATIO, TURNS, STEPS = 4, 0.1, 20, 8
MOST = 1.05
COMPILED = [Shape(Kind.DENOISE, 1), Shape(Kind.EXTEND, STREAMS, 1)]  # all that is measured
ENGINES = {
    'compiled': ('now', KEEP_RATIO),
    'compiled, started whole': ('now', 1.0),
    'eager': ('off', KEEP_RATIO),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part; compilation takes some minutes at the first run."""
    parser.add_argument('--preset', default='tabletop_long')
    parser.add_argument('--turns', type=int, default=TURNS)


def run(args: argparse.Namespace) -> dict:
    """Measure in turns, print the table, and return all figures."""
    torch.set_num_threads(1)
    policy = FullPolicy.random(served(preset(args.preset), 'cpu'))
    engines = {name: engine(policy, *how) for name, how in ENGINES.items()}
    times: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for turn in range(args.turns):
        for compressed in (0, 1, STREAMS):
            for name, one in engines.items():
                times.setdefault((name, compressed), []).append(measured(one, compressed, turn))
    base = times['compiled, started whole', 0]
    rows = []
    for (name, compressed), found in times.items():
        row: dict[str, object] = dict(engine=name, compressed=f'{compressed} of {STREAMS}')
        for i, what in enumerate(('decode step', 'chunk')):
            ratios = [own[i] / whole[i] for own, whole in zip(found, base, strict=True)]
            low, middle, high = statistics.quantiles(ratios * 2, n=4)  # also of one turn
            row |= {f'{what} (ms)': statistics.median(own[i] for own in found)}
            row |= {what: middle, f'{what}, quartiles': f'{low:.2f} to {high:.2f}'}
        rows.append(row)
    if not args.json:
        show('compiled', args, {'time in relation to whole prefixes, compiled': rows})
    worst = max(float(str(r['decode step'])) for r in rows if r['engine'] == 'compiled')
    return settings(args) | dict(rows=rows, worst=worst, most=MOST, holds=worst <= MOST)


def engine(policy: FullPolicy, compile: str, keep_ratio: float) -> Engine:
    """Return an engine with room for a copy of each stream."""
    config = EngineConfig(
        rows=STREAMS + 4,
        streams=STREAMS,
        euler_steps=4,
        compressed_rows=STREAMS,
        compile=compile,
        language_keep_ratio=keep_ratio,
        time_budget=False,
    )
    with mock.patch.object(shapes, 'compiled_shapes', lambda *_: COMPILED):
        return Engine(policy, config, say=lambda line: print(line, file=sys.stderr, flush=True))


def measured(one: Engine, compressed: int, turn: int) -> tuple[float, float]:
    """Return the ms of a decode step of all streams, and of a chunk, with so many copies."""
    config = one.policy.config
    streams = []
    for i in range(STREAMS):
        one.compression.set_keep_ratio('language', KEEP_RATIO if i < compressed else 1.0)
        (handle,) = one.prefill([observation(config, STREAMS * turn + i + 1)])
        streams.append(one.open(handle, 'Subtask:', max_tokens=STEPS + 8))
        while not streams[-1].lease.is_copy and len(streams[-1].tokens) < 4:
            one.decode()
    assert sum(stream.lease.is_copy for stream in streams) == compressed
    steps = statistics.median(milliseconds(one, STEPS))
    with one.kv.acquire(handle) as lease:
        chunks = []
        for _ in range(4):
            began = time.process_time()
            one.denoise([lease], [math.inf])
            chunks.append(1e3 * (time.process_time() - began))
    for stream in streams:
        if not stream.reason:
            one.cancel(stream.id)
    one.deltas()
    return steps, statistics.median(chunks)


def milliseconds(one: Engine, steps: int) -> Iterator[float]:
    """Yield the processor time of each decode step."""
    for _ in range(steps):
        began = time.process_time()
        one.decode()
        yield 1e3 * (time.process_time() - began)


main = command('compress.compiled', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
