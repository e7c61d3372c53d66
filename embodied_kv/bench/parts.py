"""Each phase alone, beside the machine's ceilings.

The phases: prefill, one denoise step, one decode step at batch 1 to 16.

Physics: the floor of a phase is the larger of its operations over the measured matrix rate and its
bytes over the measured bandwidth (weights once, the KV it reads once). `of_floor` is floor / time:
1 cannot be beaten.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch

from embodied_kv.bench.common import physics, report, scene
from embodied_kv.bench.common.command import add_engine, command
from embodied_kv.bench.common.pictures import plt, save
from embodied_kv.config import preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.dtype import served

BATCHES = (1, 2, 4, 8, 16)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this benchmark."""
    add_engine(parser)
    parser.add_argument('--repeats', type=int, default=7)


def measure(
    engine: Engine, repeats: int, device: str
) -> list[tuple[str, float, dict[str, float]]]:
    """(phase, seconds, needed operations and bytes) of each phase, by the engine's own calls."""
    c = engine.policy.config
    frames = iter(range(10_000))

    def prefill() -> None:
        engine.prefill([scene.observation(c, next(frames))])

    def median(work) -> float:
        return report.seconds(work, repeats, warmup=2, device=device)

    out = [('prefill', median(prefill), physics.prefill(c, c.prefix_tokens, len(c.views)))]
    (handle,) = engine.prefill([scene.observation(c, 0)])
    steps = engine.config.euler_steps
    with engine.kv.acquire(handle) as lease:
        took = median(lambda: engine.denoise([lease], [time.monotonic() + 1e6])) / steps
        out.append(('denoise step', took, physics.denoise_step(c, handle.length)))
        for batch in BATCHES:
            while len(engine.kv.streams()) < batch:  # each over a frame of its own
                frame = scene.copy_frame(engine, handle, 0)
                scene.open_stream(engine, frame, engine.config.decode_tokens - 16, said=1)
            context = handle.length + 8 + repeats // 2
            took = median(engine.decode)
            out.append((f'decode step x{batch}', took, physics.decode_step(c, context, batch)))
    return out


def run(args: argparse.Namespace) -> dict:
    """Measures, prints the table, and returns all figures."""
    torch.set_num_threads(args.threads)
    c = served(preset(args.preset), args.device)
    engine = Engine(
        scene.FullPolicy.random(c, device=args.device),
        EngineConfig(
            rows=BATCHES[-1] + 4,
            streams=BATCHES[-1],
            decode_tokens=128,
            time_budget=False,
            min_euler_steps=10,
        ),
    )
    with torch.inference_mode():
        parts = measure(engine, args.repeats, args.device)
    ceiling = report.ceilings(getattr(torch, c.dtype), args.device)
    rows = []
    for phase, took, need in parts:
        floor = max(need['flops'] / ceiling['gflops'], need['bytes'] / ceiling['gbytes']) / 1e9
        rows.append(
            dict(
                phase=phase,
                ms=took * 1e3,
                gflops=need['flops'] / took / 1e9,
                gbytes=need['bytes'] / took / 1e9,
                floor_ms=floor * 1e3,
                of_floor=floor / took,
            )
        )
    if not args.json:
        note = f'ceilings: {ceiling["gflops"]:.0f} GFLOP/s, {ceiling["gbytes"]:.1f} GB/s'
        report.show(f'parts, {args.preset}, {args.device}, {c.dtype}', rows, note)
        plot(rows)
    return dict(preset=args.preset, ceilings=ceiling, rows=rows)


def plot(rows: Sequence[dict]) -> None:
    """Time of each phase, beside its floor."""
    figure, axis = plt.subplots(figsize=(8, 4), layout='constrained')
    positions = np.arange(len(rows))
    axis.barh(positions - 0.2, [row['ms'] for row in rows], 0.4, label='measured')
    axis.barh(positions + 0.2, [row['floor_ms'] for row in rows], 0.4, label='floor')
    axis.set_yticks(positions, [row['phase'] for row in rows])
    axis.invert_yaxis()
    axis.set_xscale('log')
    axis.set_xlabel('ms')
    axis.legend(frameon=False)
    save(figure, 'parts')


main = command('parts', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
