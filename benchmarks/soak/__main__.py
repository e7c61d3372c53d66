"""Whether anything leaks: a hundred thousand frames of failures, and all that was held comes back.

The real engine, its device thread, the KV manager, compression, sessions with capsules in all
tiers, and planning with memory, of tiny models with random weights. A seeded sequence of frames
(good, impossible, batched, superseded, racing), questions, cancels, limits, keep ratios,
snapshots, restores, forks, moves, segments and plans; and at every boundary calls that fail now
and then. Frames follow one another as soon as they are done: no period is slept through.

Laws, after every 50 frames or every 500: free + held = rows; every future is answered; every
stream ends once; at rest no row, lease, stream, decode KV, compressed copy, text, file, thread or
descriptor is left over; capsules and memory have the bytes and files that they list; what cannot
be is refused; in the end all can be given up and opened anew. And resident memory stays within 2%
of what it was after the first tenth. Where a law is broken the command says what was found, and
its exit status is 1.

Physics: what is allocated once does not grow. A leak of b bytes a frame is seen when b times the
frames exceeds 2% of the process, some 9 MiB: 100 bytes in 100,000 frames. What is counted, such as
a row or a file, is seen when it is lost once. Each operation costs in the last tenth what it cost
in the first, unless something that it looks through has grown.
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
FEW = 5  # operations, of which a median says nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this benchmark."""
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
    """Soaks, prints the tables, and returns all figures."""
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
    """By operation: outcomes, and ms of one in the first and the last tenth, medians."""
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
    """As of every benchmark; the exit status is 1 where a law is broken."""
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
