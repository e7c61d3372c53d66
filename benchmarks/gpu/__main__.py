"""Tests and benchmarks of a CUDA card: facts, equality, then figures; see docs/gpu.md.

The most valuable stages come first. Each stage is a process with its own time limit, so that one
that hangs or crashes does not end the others. FOLDER/results.json has the results of every stage,
and FOLDER/summary.txt a line of each; both are written after each stage. Stages that are in the
file already are not run again, so a programme that was cut short continues where it stopped. Exit
status: 1 if a stage failed, or one that --stages names has not run; 2 if FOLDER has results of
another card or torch.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.gpu import results, runner, summary
from benchmarks.gpu.results import ENDED, FAILED, SKIPPED, OtherMachineError, Results
from benchmarks.gpu.stages import NAMES, STAGES, Stage

LEAST = 15.0  # s; with less left, no stage is begun
AGAIN = ('failed', 'all')
BUDGET, DRY = 9.5, 10.0  # minutes: of all stages; of each stage on a CPU, which may be busy
SUMMARY, PRINTED = 'summary.txt', 'stages'  # what a folder has in addition to the results


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog='tools/gpu', description=__doc__, formatter_class=form)
    names = ', '.join(NAMES)
    parser.add_argument('--stages', nargs='+', choices=NAMES, metavar='NAME', help=names)
    parser.add_argument('--out', type=Path, help='FOLDER; out/gpu, or out/gpu-dry')
    parser.add_argument('--budget', type=float, default=BUDGET, help=f'minutes in all; {BUDGET}')
    parser.add_argument('--dry', action='store_true', help='every stage, tiny, on a CPU')
    parser.add_argument('--commit', default='', help='of this copy, where it has no repository')
    parser.add_argument('--tables', action='store_true', help='print all tables, run nothing')
    parser.add_argument('--lerobot', default='', help='folder of a LeRobot checkout, for peers')
    parser.add_argument(
        '--again', nargs='?', choices=AGAIN, const='all', help='stages that are there, too'
    )
    args = parser.parse_args(arguments)
    args.out = (args.out or Path('out/gpu-dry' if args.dry else 'out/gpu')).resolve()
    if args.lerobot:
        args.lerobot = str(Path(args.lerobot).resolve())
    return args


def main(arguments: Sequence[str] | None = None, stages: Sequence[Stage] = STAGES) -> int:
    """Run the requested stages and return the exit status. stages: those that exist."""
    args = parsed(arguments)
    (args.out / PRINTED).mkdir(parents=True, exist_ok=True)
    chosen = [stage for stage in stages if not args.stages or stage.name in args.stages]
    try:
        kept = Results(args.out, results.machine(args.dry, args.commit))
    except OtherMachineError as error:
        say(f'tools/gpu: {error}')
        return runner.REFUSED
    if args.tables:
        print(summary.tables(chosen, kept))
        return 0
    for found in programme(chosen, args, kept):
        kept.keep(found)
        (args.out / SUMMARY).write_text(summary.text(stages, kept))
    print(summary.text(stages, kept))
    print(f'all of it: {args.out}')
    done = [kept.done(stage.name) for stage in chosen]
    is_missing = bool(args.stages) and None in done
    return int(is_missing or any(found['status'] in (FAILED, ENDED) for found in done if found))


def programme(chosen: Sequence[Stage], args: argparse.Namespace, kept: Results) -> Iterator[dict]:
    """Yield the result of each stage that had to run and for which there was time."""
    ends = time.monotonic() + 60 * args.budget
    for stage in chosen:
        before = kept.done(stage.name)
        if before is not None and not _again(before, args.again):
            say(f'{stage.name}: {before["status"]} already')
            continue
        rest = ends - time.monotonic()
        if rest < LEAST:
            say(f'{stage.name}: no time is left; call again')
            continue
        say(f'{stage.name}: {stage.asks}')
        found = dict(stage=stage.name, began=datetime.now(timezone.utc).isoformat())
        found |= one(stage, args, rest)
        say(f'{stage.name}: {found["status"]} in {found["seconds"]} s  {found["reason"]}')
        yield found


def one(stage: Stage, args: argparse.Namespace, rest: float) -> dict:
    """Run a stage and return its result; a stage without its option is skipped."""
    value = getattr(args, stage.option) if stage.option else ''
    if stage.option and not value:
        reason = f'no path is given: --{stage.option} PATH'
        return dict(status=SKIPPED, reason=reason, seconds=0, command='', figures=None, tail=[])
    command = stage.command(args.dry, value)
    minutes = DRY if args.dry else stage.minutes
    judge = None if args.dry else stage.judge
    return runner.run(stage.name, command, args.out / PRINTED, 60 * minutes, rest, judge)


def _again(before: dict, again: str | None) -> bool:
    """Return whether a stage that has a result is to run again; one that was skipped always is."""
    failed = before['status'] in (FAILED, ENDED)
    return again == 'all' or before['status'] == SKIPPED or (again == 'failed' and failed)


def say(line: str) -> None:
    """Print a line about the progress."""
    print(line, file=sys.stderr, flush=True)


def start() -> None:
    """Run the program; if it is terminated, it ends its stage, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())


if __name__ == '__main__':
    start()
