"""Soak test for leaks: a hundred thousand frames with failures, then everything is returned.

The soak runs the real engine, its thread, the KV manager, compression, sessions with capsules in
all tiers, and planning with memory, on tiny models with random weights. A seeded sequence has
frames (valid, impossible, batched, superseded, racing), questions, cancels, limits, keep ratios,
snapshots, restores, forks, moves, segments and plans; at every boundary calls fail now and then.
Each frame follows as soon as the previous one is done, without waiting for a period.

Invariants ("laws"), checked after every 50 or every 500 frames: free + held = rows; every future
is answered; every stream ends once; at rest no row, lease, stream, decode KV, compressed copy,
text, file, thread or descriptor is left over; capsules and memory have the bytes and files that
they list; impossible requests are refused; at the end everything can be dropped and opened again.
In addition, resident memory stays within 2% of its size after the first tenth. If an invariant is
broken, the command reports what was found, and its exit status is 1.

Physics: what is allocated once does not grow. A leak of b bytes per frame is detected when b times
the frames exceeds 2% of the process, about 9 MiB: 100 bytes in 100,000 frames. The loss of a
counted resource, such as a row or a file, is detected at once. Each operation costs in the last
tenth what it cost in the first, unless something that it searches has grown.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.soak.ledger import DONE, INJECTED, REFUSED
from benchmarks.soak.operations import is_expected
from benchmarks.soak.resident import MIB
from benchmarks.soak.run import Soak, soak

QUICK, QUICK_FAILURES = 300, 5.0
FEW = 5  # minimum number of operations for a median


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    parser.add_argument('--frames', type=int, default=100_000)
    parser.add_argument(
        '--quick',
        action='store_true',
        help=f'{QUICK} frames, calls fail {QUICK_FAILURES:g}x as often',
    )
    parser.add_argument('--seed', type=int, default=0, help='of what happens, and what fails')
    parser.add_argument(
        '--device',
        choices=('cpu', 'hostile'),
        default='cpu',
        help='hostile: buffers start as NaN, streams are late, any operation may fail',
    )
    parser.add_argument(
        '--failures', type=float, default=1.0, help='how often calls fail, times the usual'
    )


def run(args: argparse.Namespace) -> dict:
    """Run the soak, print the tables, and return all figures."""
    if args.quick:
        args.frames, args.failures = QUICK, QUICK_FAILURES
    columns = MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), disable=args.json) as bar:
        task = bar.add_task('frames', total=args.frames)
        found = soak(
            args.frames,
            args.seed,
            args.failures,
            lambda done: bar.update(task, completed=done),
            args.device == 'hostile',
        )
    operations, parts = _operations(found), _parts(found)
    seconds = sum(point.seconds for point in found.points)
    whole = dict(
        frames=found.points[-1].frames,
        seed=args.seed,
        device=args.device,
        failures=args.failures,
        seconds=seconds,
        resident_growth=found.growth,
        resident_bytes_a_frame=found.slope,
        resident_trimmed_mib=found.trimmed / MIB,
        injected=found.struck,
        broken=found.ledger.broken,
    )
    if not args.json:
        _show(whole, operations, parts)
    return whole | dict(operations=operations, parts=parts)


def _operations(found: Soak) -> list[dict]:
    """Return a row per operation: outcomes, and median ms in the first and the last tenth."""
    rows = []
    for name, outcomes in sorted(found.ledger.outcomes.items()):
        first, last = (found.ledger.costs.get((part, name)) for part in ('first', 'last'))
        both = first and last and min(len(first), len(last)) >= FEW
        rows.append(
            dict(
                operation=name,
                **{outcome: outcomes[outcome] for outcome in (DONE, REFUSED, INJECTED)},
                first_ms=median(first) * 1e3 if both else None,
                last_ms=median(last) * 1e3 if both else None,
                last_over_first=median(last) / median(first) if both else None,
            )
        )
    return rows


def _parts(found: Soak) -> list[dict]:
    ends = [0, *(point.frames for point in found.points)]
    return [
        dict(
            frames=point.frames,
            resident_mib=point.bytes / MIB,
            frames_per_s=(point.frames - before) / point.seconds,
        )
        for before, point in zip(ends, found.points, strict=False)
    ]


def _show(whole: dict, operations: list[dict], parts: list[dict]) -> None:
    rows = [{k: '' if v is None else v for k, v in row.items()} for row in operations]
    report.show('soak, operations', rows, 'ms: medians in the first and the last tenth')
    report.show('soak, resident memory', parts)
    print(
        f'growth after the first tenth {whole["resident_growth"]:+.2%}, '
        f'{whole["resident_bytes_a_frame"]:+.1f} bytes a frame; '
        f'{whole["resident_trimmed_mib"]:.1f} MiB once all that is free was given back'
    )
    struck = ', '.join(f'{name} {count}' for name, count in whole['injected'].items())
    print(f'failures on purpose: {struck}')


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; the exit status is 1 if an invariant is broken."""
    broken = {}

    def judged(args: argparse.Namespace) -> dict:
        found = run(args)
        broken.update(found['broken'])
        return found

    command('soak', __doc__, add_arguments, judged, is_expected)(arguments)
    if broken:
        lines = [f'{law}: {evidence}' for law, evidence in broken.items()]
        raise SystemExit('\n'.join(['soak: broken laws', *lines]))


if __name__ == '__main__':
    main()
