"""Each phase alone, eager and compiled in turn, compared with the machine's ceilings.

The phases: prefill, one denoise step, one decode step at batch 1 to 16. Compiled: by
`engine.compile`, for which the first run takes minutes.

Physics: the floor of a phase is the larger of its operations over the measured matrix rate and its
bytes over the measured bandwidth (weights once, the KV it reads once). `of_floor` is floor / time:
1 cannot be exceeded. `managing`: the part of a decode step that is not the network
(`benchmarks/common/managed.py`), in the last of the ways.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import numpy as np
import torch

from benchmarks.common import physics, report, scene
from benchmarks.common.command import add_engine, command
from benchmarks.common.launched import launches
from benchmarks.common.managed import seconds_managing
from benchmarks.common.pictures import plt, save
from embodied_kv.config import preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.dtype import served

BATCHES = (1, 2, 4, 8, 16)
WARM_UP = 2  # calls that do not count
FRAMES = 8  # different ones, in turn
EAGER, COMPILED = WAYS = ('eager', 'compiled')
COMPILE = {EAGER: 'off', COMPILED: 'now'}

Phase = tuple[str, Callable[[], object], int, dict[str, float]]  # ..., steps of a call, its needs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_engine(parser)
    parser.add_argument('--repeats', type=int, default=7)
    parser.add_argument('--ways', nargs='+', choices=WAYS, default=list(WAYS))


def phases(engine: Engine, repeats: int, batches: Sequence[int] = BATCHES) -> Iterator[Phase]:
    """Yield each phase, made of the engine's own calls.

    The caller has finished with a phase before it takes the next one.
    """
    c = engine.policy.config
    frames = cycle([scene.observation(c, number) for number in range(FRAMES)])

    def prefill() -> None:
        engine.prefill([next(frames)])

    yield 'prefill', prefill, 1, physics.prefill(c, c.prefix_tokens, len(c.views))
    (handle,) = engine.prefill([scene.observation(c, 0)])
    with engine.kv.acquire(handle) as lease:

        def denoise() -> None:
            engine.denoise([lease], [time.monotonic() + 1e6])

        need = physics.denoise_step(c, handle.length)
        yield 'denoise step', denoise, engine.config.euler_steps, need
        for batch in batches:
            while len(engine.kv.streams.live()) < batch:  # each over a frame of its own
                frame = scene.copy_frame(engine, handle, 0)
                scene.open_stream(engine, frame, engine.config.decode_tokens - 16, said=1)
            context = handle.length + 8 + repeats // 2
            yield f'decode step x{batch}', engine.decode, 1, physics.decode_step(c, context, batch)


def in_turn(works: Sequence[Callable[[], object]], repeats: int, device: str) -> list[float]:
    """Return the median seconds of a call of each, taken in turn."""
    rounds = [[report.once(work, device) for work in works] for _ in range(WARM_UP + repeats)]
    return [statistics.median(taken) for taken in zip(*rounds[WARM_UP:], strict=True)]


def made(args: argparse.Namespace, way: str) -> Engine:
    """Return an engine of random weights, the same in both ways."""
    c = served(preset(args.preset), args.device)
    config = EngineConfig(
        rows=BATCHES[-1] + 4,
        streams=BATCHES[-1],
        decode_tokens=128,
        time_budget=False,
        min_euler_steps=10,
        threads=args.threads,
        compile=COMPILE[way],
    )
    return Engine(scene.FullPolicy.random(c, device=args.device), config)


def run(args: argparse.Namespace) -> dict:
    """Measure, print the table, and return all figures."""
    torch.set_num_threads(args.threads)
    ways = [way for way in WAYS if way in args.ways]
    engines = [made(args, way) for way in ways]
    c = engines[0].policy.config
    dtype, found = getattr(torch, c.dtype), []
    with report.ceilings_around(dtype, args.device) as ceiling, torch.inference_mode():
        for parts in zip(*(phases(engine, args.repeats) for engine in engines), strict=True):
            phase, _, steps, need = parts[0]
            took = in_turn([work for _, work, _, _ in parts], args.repeats, args.device)
            times = dict(zip(ways, (seconds / steps for seconds in took), strict=True))
            managing = None
            if phase.startswith('decode') and args.device == 'cpu':
                managing = seconds_managing(parts[-1][1], min(args.repeats, 5))
            found.append((phase, times, need, managing))
    rows = [row(*each, ceiling) for each in found]
    graphs = engines[-1].graphs
    launched = {name: launches(path) / c.backbone.layers for name, path in graphs.packages.items()}
    if not args.json:
        note = f'ceilings: {ceiling["gflops"]:.0f} GFLOP/s, {ceiling["gbytes"]:.1f} GB/s'
        for name, count in launched.items():
            note += f'\nlaunches by layers, compiled: {name} {count:.1f}'
        report.show(f'parts, {args.preset}, {args.device}, {c.dtype}', rows, note)
        plot(rows)
    return dict(preset=args.preset, ceilings=ceiling, launches_by_layers=launched, rows=rows)


def row(
    phase: str,
    times: dict[str, float],
    need: dict[str, float],
    managing: float | None,
    ceiling: dict[str, float],
) -> dict:
    """Return the row of a phase.

    times: s of each way. need: operations and bytes. managing: s of the last way.
    """
    best = min(times.values())
    floor = max(need['flops'] / ceiling['gflops'], need['bytes'] / ceiling['gbytes']) / 1e9
    found = dict(phase=phase) | {f'{way}_ms': took * 1e3 for way, took in times.items()}
    if len(times) == len(WAYS):
        found['eager_over_compiled'] = times[EAGER] / times[COMPILED]
    return found | dict(
        gflops=need['flops'] / best / 1e9,
        gbytes=need['bytes'] / best / 1e9,
        floor_ms=floor * 1e3,
        of_floor=floor / best,
        managing_ms=None if managing is None else managing * 1e3,
    )


def plot(rows: Sequence[dict]) -> None:
    """Plot the time of each phase in each way, next to its floor."""
    figure, axis = plt.subplots(figsize=(8, 4), layout='constrained')
    positions = np.arange(len(rows))
    names = [name for name in ('eager_ms', 'compiled_ms', 'floor_ms') if name in rows[0]]
    for i, name in enumerate(names):
        at = positions + (i - (len(names) - 1) / 2) * 0.8 / len(names)
        label = name.removesuffix('_ms')
        axis.barh(at, [row[name] for row in rows], 0.8 / len(names), label=label)
    axis.set_yticks(positions, [row['phase'] for row in rows])
    axis.invert_yaxis()
    axis.set_xscale('log')
    axis.set_xlabel('ms')
    axis.legend(frameon=False)
    save(figure, 'parts')


main = command('parts', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
