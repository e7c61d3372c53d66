"""The engine and LeRobot's own pi0.5 or SmolVLA with equal dimensions, weights, inputs and noise.

Prefill, denoising (10 Euler steps) and the whole action frame are timed alternately in one
process, forwards and backwards, after rounds that do not count. LeRobot's model runs as its source
defines it, eager and as `compile_model` compiles it; the engine runs eager and with
`engine.compile: now`. Outputs are compared first; where they differ, nothing is timed. The first
run compiles for minutes. `--policy pi05` and `--policy smolvla` have the real dimensions;
`--preset` takes others.

Physics: both compute the same matrix products on the same bytes, so neither can be faster than the
floor: the larger of operations over the measured matrix rate and bytes (weights once a phase, or
once an Euler step) over the measured bandwidth. Prefixes are full, so no padding is computed. A
ratio is the median of the rounds' ratios, LeRobot over the engine, with a 95% interval.

In bfloat16 LeRobot rounds the positions' frequencies of pi0.5 too, which changes its results:
outputs must agree within the tolerance in float32; in bfloat16 the difference is only reported.
LeRobot computes SmolVLA in float32 also for an engine in bfloat16.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from math import inf
from pathlib import Path

import torch

from benchmarks.common import physics, report, scene
from benchmarks.common.command import BenchmarkError, add_engine, command
from benchmarks.peers import figures, lerobot, measure
from benchmarks.peers.both import Both, family
from benchmarks.peers.plot import plot
from benchmarks.peers.ways import WAYS, Asked
from embodied_kv.config import DTYPES, ModelConfig, preset
from embodied_kv.model.parity.golden import RESULT

FRAMES = 3  # that are compared; the first of them is timed
EAGER = ('ours_eager', 'theirs_eager')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    add_engine(parser)
    parser.add_argument(
        '--policy', dest='preset', choices=('pi05', 'smolvla'), help='the preset of that name'
    )
    parser.add_argument(
        '--views', type=int, metavar='N', help='cameras; default: all of the preset'
    )
    parser.add_argument('--lerobot', type=Path, metavar='PATH', help='a checkout of its source')
    parser.add_argument('--dtype', choices=DTYPES, default='float32')
    parser.add_argument('--repeats', type=int, default=9, help='rounds that count')
    parser.add_argument('--ways', nargs='+', choices=WAYS, default=list(WAYS))


def run(args: argparse.Namespace) -> dict:
    """Compare and measure; print the tables and return all figures."""
    try:
        c = replace(scene.with_views(preset(args.preset), args.views), dtype=args.dtype)
    except ValueError as error:
        raise BenchmarkError(str(error)) from error
    peer = family(c)
    package = lerobot.source(args.lerobot, peer.MODULE)
    torch.set_num_threads(args.threads)
    ceilings = report.ceilings_around(getattr(torch, c.dtype), args.device)
    with lerobot.imported(package, peer.MODULE) as module, ceilings as ceiling:
        both = Both.random(c, module, args.device)
        differences, taken = measured(both, args)
    rows, ratios = (
        figures.times(taken, floors(c, ceiling)),
        figures.ratios(taken, peer.aims(c.dtype)),
    )
    if not args.json:
        show(f'{args.preset}, {args.device}, {c.dtype}', rows, ratios)
        plot(rows)
    return dict(
        preset=args.preset,
        dtype=c.dtype,
        views=len(c.views),
        repeats=args.repeats,
        parameters=both.parameters,
        tolerance=RESULT,
        differences=differences,
        compile_mode=both.peer.compile_mode,
        transformers=version('transformers'),
        ceilings=ceiling,
        rows=rows,
        ratios=ratios,
    )


def measured(both: Both, args: argparse.Namespace) -> tuple[dict, dict[str, figures.Taken]]:
    """Return differences by dtype and way, and seconds by phase and way. Raises BenchmarkError.

    Eager engines are compared in float32 before anything is compiled or rounded.
    """
    frames = [Asked.of(both.policy, number) for number in range(FRAMES)]
    first = frames[0]
    with both.opened(EAGER, first, args.threads) as ways:
        found = {'float32': measure.check(ways, frames, both.theirs(first), RESULT)}
    both, tolerance = both.to(args.dtype), RESULT if args.dtype == 'float32' else inf
    with both.opened(args.ways, first, args.threads) as ways:
        differences = measure.check(ways, frames, both.theirs(first), tolerance)
        found[args.dtype] = found.get(args.dtype, {}) | differences
        return found, measure.in_turn(ways, first, args.repeats, args.device)


def floors(c: ModelConfig, ceiling: Mapping[str, float]) -> dict[str, float]:
    """Return the floor of each phase in s."""
    step = physics.denoise_step(c, c.prefix_tokens)
    needs = dict(prefill=physics.prefill(c, c.prefix_tokens, len(c.views)), denoise=step)
    found = {
        phase: max(need['flops'] / ceiling['gflops'], need['bytes'] / ceiling['gbytes']) / 1e9
        for phase, need in needs.items()
    }
    found['denoise'] *= lerobot.STEPS
    return found | dict(frame=sum(found.values()))


def show(what: str, rows: Sequence[dict], ratios: Sequence[dict]) -> None:
    """Print both tables. what: the title of the measurement."""
    machine = report.machine()
    note = f'{machine["cpu"]}, {machine["threads"]} threads: {" ".join(machine["cpu_flags"])}'
    report.show(f'peers, {what}', rows, note)
    if ratios:
        shown = [{k: '' if v is None else v for k, v in ratio.items()} for ratio in ratios]
        report.show('theirs over ours', shown, 'low, high: 95%; aim: of ours compiled')


main = command('peers', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
