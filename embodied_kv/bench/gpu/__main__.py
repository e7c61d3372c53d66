"""First light on a card: facts, equality, then figures, most valuable first; see docs/gpu.md.

Each stage is a process of its own with a limit of its own, so that one that hangs or crashes ends
no other. FOLDER keeps STAGE.json of each, and summary.md; a stage that has its file is not run
again, so that a programme that was cut goes on where it stopped. Exit status: 0 where all that was
asked for is there, and none of it failed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from embodied_kv.bench.gpu import runner, summary
from embodied_kv.bench.gpu.runner import FAILED, SKIPPED
from embodied_kv.bench.gpu.stages import NAMES, STAGES, Stage

LEAST = 15.0  # s, with less left no stage is begun
AGAIN = ('failed', 'all')


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog='tools/gpu', description=__doc__, formatter_class=form)
    names = ', '.join(NAMES)
    parser.add_argument('--stages', nargs='+', choices=NAMES, metavar='NAME', help=names)
    parser.add_argument('--out', type=Path, help='FOLDER; out/gpu, or out/gpu-dry')
    parser.add_argument('--budget', type=float, default=18.0, help='minutes in all')
    parser.add_argument('--dry', action='store_true', help='every stage, tiny, on a CPU')
    parser.add_argument('--lerobot', default='', help='folder of a LeRobot checkout, for peers')
    parser.add_argument(
        '--again', nargs='?', choices=AGAIN, const='all', help='stages that have their file, too'
    )
    args = parser.parse_args(arguments)
    args.out = (args.out or Path('out/gpu-dry' if args.dry else 'out/gpu')).resolve()
    if args.lerobot:
        args.lerobot = str(Path(args.lerobot).resolve())
    return args


def main(arguments: Sequence[str] | None = None, stages: Sequence[Stage] = STAGES) -> int:
    """Runs the stages that are asked for -> exit status. stages: those that there are."""
    args = parsed(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [stage for stage in stages if not args.stages or stage.name in args.stages]
    for found in programme(chosen, args):
        runner.keep(found, args.out)
        text = summary.markdown(stages, args.out, args.dry)
        (args.out / 'summary.md').write_text(text)
    print(summary.head(stages, args.out, args.dry))
    print(f'all of it: {args.out}')
    left = [runner.kept(stage.name, args.out, args.dry) for stage in chosen]
    return int(any(found is None or found['status'] in (FAILED, runner.ENDED) for found in left))


def programme(chosen: Sequence[Stage], args: argparse.Namespace) -> Iterator[dict]:
    """What came of each stage that had to run, and had time to."""
    ends = time.monotonic() + 60 * args.budget
    for stage in chosen:
        before = runner.kept(stage.name, args.out, args.dry)
        if before is not None and not _again(before, args.again):
            say(f'{stage.name}: {before["status"]} already')
            continue
        rest = ends - time.monotonic()
        if rest < LEAST:
            say(f'{stage.name}: no time is left; call again')
            continue
        say(f'{stage.name}: {stage.asks}')
        facts = dict(stage=stage.name, dry=args.dry, began=datetime.now(timezone.utc).isoformat())
        found = facts | one(stage, args, rest)
        say(f'{stage.name}: {found["status"]} in {found["seconds"]} s  {found["reason"]}')
        yield found


def one(stage: Stage, args: argparse.Namespace, rest: float) -> dict:
    """As `runner.run`; a stage without its option is skipped."""
    value = getattr(args, stage.option) if stage.option else ''
    if stage.option and not value:
        reason = f'no path is given: --{stage.option} PATH'
        return dict(status=SKIPPED, reason=reason, seconds=0, command='', figures=None)
    command = stage.command(args.dry, value)
    return runner.run(stage.name, command, args.out, 60 * stage.minutes, rest)


def _again(before: dict, again: str | None) -> bool:
    """Whether a stage that has its file is to run once more. One that was skipped always is."""
    failed = before['status'] in (FAILED, runner.ENDED)
    return again == 'all' or before['status'] == SKIPPED or (again == 'failed' and failed)


def say(line: str) -> None:
    """For whoever waits."""
    print(line, file=sys.stderr, flush=True)


def start() -> None:
    """The program: one that is asked to end takes its stage with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())


if __name__ == '__main__':
    start()
