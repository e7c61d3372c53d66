"""How many of 6,000 chunks come too late in 10 Hz control under an endless language backlog.

A frame's stamp is the moment it was due; its chunk must be published before stamp + period,
prefill included. The backlog never ends: a stream that finishes is replaced at once. Five runs,
unless fewer are requested:

- with the time budget
- the same with a snapshot of the session once a second, from a thread of its own as a service
  takes it
- the same under one budget of bytes for all KV, so that after the first seconds every capsule
  evicts another one
- without the time budget: decode whenever nothing else waits, always all Euler steps
- an empty loop that only sleeps to each period: the floor of the machine

Physics: a frame costs prefill + denoising; the rest of the period is idle time (slack). Idle time
over the cost of a decode step, times the streams in the batch, is the number of tokens that fit. A
snapshot copies the rows of the live streams, some MB, in turn with the prefills: it takes its time
from the idle time of one frame.
"""

from __future__ import annotations

import argparse
from functools import partial

from benchmarks.common import report
from benchmarks.common.command import add_device, command
from benchmarks.deadline.plot import plot
from benchmarks.deadline.serve import empty, figures, serve

KV_BUDGET_MIB = 8
RUNS = {
    'budget on': partial(serve, time_budget=True),
    'budget on, snapshots': partial(serve, time_budget=True, freeze=True),
    'one KV budget, snapshots': partial(
        serve, time_budget=True, freeze=True, kv_budget_mib=KV_BUDGET_MIB
    ),
    'budget off': partial(serve, time_budget=False),
    'empty loop': empty,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--preset', default='tabletop', help='dimensions of the model')
    add_device(parser)
    parser.add_argument('--threads', type=int, default=1, help='of torch')
    parser.add_argument('--deadlines', type=int, default=6000)
    parser.add_argument('--quick', action='store_true', help='600 deadlines')
    parser.add_argument(
        '--period', type=float, default=0.1, help='s; below 0.1 time is compressed'
    )
    parser.add_argument('--views', type=int, help='the first ones of the preset alone')
    parser.add_argument('--compile', default='off', help='as engine.compile')
    parser.add_argument('--runs', nargs='+', choices=RUNS, default=list(RUNS))


def run(args: argparse.Namespace) -> dict:
    """Measure every run, print the table, and return all figures."""
    args.deadlines = 600 if args.quick else args.deadlines
    runs = {name: RUNS[name](args) for name in args.runs}
    rows = [figures(name, args, **measured) for name, measured in runs.items()]
    snapshots = runs.get('budget on, snapshots', {}).get('snapshots')
    note = f'period {args.period * 1e3:.0f} ms{" (time compressed)" * (args.period < 0.1)}'
    if snapshots:
        note += (
            '; {count} snapshots of {mb:.2f} MB, ms of the engine thread: p50 {p50_ms:.2f}, '
            'max {max_ms:.2f}'.format(**snapshots)
        )
    if not args.json:
        report.show(f'deadline, {args.preset}, {args.device}', rows, note)
        plot({name: measured['late'] for name, measured in runs.items()}, args.period)
    return dict(
        preset=args.preset,
        period_s=args.period,
        time_compressed=args.period < 0.1,
        rows=rows,
        snapshots=snapshots,
    )


main = command('deadline', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
