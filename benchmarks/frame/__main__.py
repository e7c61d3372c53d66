"""One robot frame, computed in five ways: what sharing and batching one KV cache saves.

Source: OxyGen, section 4.

A frame: one observation, one action chunk, one new language stream of N tokens.
- isolated: a prefill for the action, another for language, then N serial decode steps.
- shared: one prefill, then N serial decode steps.
- batched: one prefill; k decode steps of all live streams (about N / k of them) in one batch.
- copying: as batched, but caches are duplicated, concatenated and split every frame, as OxyGen
  does.
- parallel: two processes, one acts and one decodes, each with a model and a prefill of its own.

Physics: a decode step reads all weights whatever the batch, so N serial steps read them N times,
and k batched steps k times; a prefill is operations. The floor of a frame is max(operations /
rate, bytes / bandwidth) per phase. `predicted` is the time of the frame from separately timed
phases with contiguous caches; `management` is the share of the frame spent on rows, handles,
views, stores of K and V and token choice, plus what attention over rows in place loses against a
contiguous batch.

Times are CPU times of the process with one thread on a CPU, so that other work on the machine
hardly changes them, otherwise wall times. The ways take turns, frame by frame; a ratio is the
median of the frames' own ratios, and its interval resamples frames.

With --compile the engines of all ways are compiled, which takes minutes for each N at the first
run. The decoding of `copying` and the prediction use no engine and stay eager.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

import torch

from benchmarks.common import physics, report
from benchmarks.common.command import add_engine, command
from benchmarks.common.scene import FullPolicy
from benchmarks.frame.measure import grid, run
from benchmarks.frame.modes import MODES
from benchmarks.frame.plot import plot
from embodied_kv.config import preset
from embodied_kv.model.dtype import served

FRAMES, QUICK_FRAMES = 20, 6  # counted frames per point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_engine(parser)
    parser.set_defaults(threads=1)
    parser.add_argument('--frames', type=int, help='counted frames per point')
    parser.add_argument('--quick', action='store_true', help='two points of few frames')
    parser.add_argument('--tokens', type=int, nargs='+', help='N')
    parser.add_argument('--steps', type=int, nargs='+', help='k')
    parser.add_argument('--chunk-sizes', type=int, nargs='+', help='actions per chunk')
    parser.add_argument('--modes', nargs='+', choices=MODES)
    parser.add_argument(
        '--compile', action='store_const', const='now', default='off', help='the engines'
    )
    parser.add_argument('--full', action='store_true', help='the whole grid and all modes')


def measure(args: argparse.Namespace) -> dict:
    """Measure every point, print the table, and return all figures."""
    torch.set_num_threads(args.threads)
    modes = args.modes or [
        m for m in MODES if m != 'parallel' or args.full or args.device == 'cuda'
    ]
    c = served(preset(args.preset), args.device)
    frames = args.frames or (QUICK_FRAMES if args.quick else FRAMES)
    rows: list[dict] = []
    ratios: list[dict] = []
    policy = None
    with report.ceilings_around(getattr(torch, c.dtype), args.device) as ceiling:
        for size, settings in grid(args):
            if policy is None or size != policy.config.chunk_size:
                config = dataclasses.replace(c, chunk_size=size)
                policy = FullPolicy.random(config, device=args.device)
            with torch.inference_mode():
                found, compared = run(policy, settings, modes, frames, args.compile)
            rows += found
            ratios += compared
            print(f'N={settings[0].tokens} chunk size {size} done', file=sys.stderr, flush=True)
    if not args.json:
        title = f'frame, {args.preset}, {args.device}, {c.dtype}, compile: {args.compile}'
        report.show(title, rows, 'ms: median frame; rows of the steady state were pre-filled')
        if ratios:
            title = f'time of a frame over that of batched, 95% intervals, {frames} frames'
            report.show(title, ratios, 'ratio: of CPU time of the process. wall: of wall time.')
            plot(rows, ratios)
    return dict(
        preset=args.preset,
        prefilled_rows=True,
        frames=frames,
        compile=args.compile,
        ceilings=ceiling,
        prefill_floor=physics.prefill(c, c.prefix_tokens, len(c.views)),
        rows=rows,
        ratios=ratios,
    )


main = command('frame', __doc__, add_arguments, measure)

if __name__ == '__main__':
    main()
