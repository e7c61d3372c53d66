"""Tasks about the past after a kill, without one feature at a time.

The tabletop policy in the worlds of evaluation: the present frame does not determine the goal
(`return`, `hidden`, `sequence`; docs/training.md). Before each episode the expert plays its past,
whose moments an engine prefills. Then this engine is replaced, as by a kill before the new task,
and the policy acts in another one. Scenes, pasts and noise are the same for
every row.

all             4 memory rows with a share of their tokens, restored from a capsule
no memory       no memory rows: the goal can only be guessed
no compression  whole memory rows in the same bytes, hence fewer of them
no capsules     the memory rows are lost with their engine
by words        32 memory rows are kept, and the instruction selects the 4 that are read; for
                --tasks-between, which adds earlier tasks after the one that is asked for

Physics: without information about the past, success is at most that of a guess with the expert's
movements. Sharing has no row, because frames that are encoded again give the same actions:
they cost time. Neither has Kairos, because which robot is served first changes no goal.
`benchmarks.fleet.remembering` measures the latency without each of both.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from benchmarks.common import report
from benchmarks.common.command import command
from embodied_kv.demo.sim.tasks import MEMORY_FAMILIES
from training.evaluate import evaluation
from training.evaluate.cases import Outcome
from training.evaluate.report import pair_rows, wilson

MOST, SHARE = 4, 0.5
ALL = dict(memory_rows=MOST, memory_keep_ratio=SHARE, past='restored')
ROWS = {
    'all': ALL,
    'no memory': ALL | dict(memory_rows=0),
    'no compression': ALL | dict(memory_rows=max(1, round(MOST * SHARE)), memory_keep_ratio=1.0),
    'no capsules': ALL | dict(past='lost'),
    'by words': ALL | dict(memory_kept_rows=32),
}
LATENCY = 40.0  # ms from a frame to its chunk; fixed, so that speed does not change a result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument('--checkpoint', help='of the policy; else the bundled one')
    parser.add_argument('--episodes', type=int, default=60, help='of each family')
    parser.add_argument('--rows', nargs='+', choices=ROWS, default=list(ROWS)[:4])
    parser.add_argument('--families', nargs='+', choices=MEMORY_FAMILIES, default=MEMORY_FAMILIES)
    parser.add_argument('--tasks-between', type=int, default=0, help='additional earlier tasks')
    parser.add_argument('--quick', action='store_true', help='two episodes')


def run(args: argparse.Namespace) -> dict:
    """Measure, print the tables, and return all figures."""
    torch.set_num_threads(1)
    words = ['--families', *args.families, '--seeds', '1', '--latency-ms', str(LATENCY)]
    words += ['--tasks-between', str(args.tasks_between)]
    words += ['--episodes', str(2 if args.quick else args.episodes), '--mode', 'silent']
    options = evaluation.parser().parse_args(words)
    policy, outcomes = evaluation.load(args.checkpoint), {}
    with evaluation.Evaluation(options, policy) as made:
        robots = min(options.robots, len(made.cases))
        for name in args.rows:
            outcomes[name] = made.act(name, made.served('silent', robots, **ROWS[name]))
    rows = [_row(name, found) for name, found in outcomes.items()]
    pairs = pair_rows(outcomes)
    if not args.json:
        report.show(f'{len(made.cases)} episodes after a kill', rows, '95% intervals of Wilson')
        if pairs:  # of at least two rows
            report.show('the same episodes', pairs, 'only_first: done by the first alone')
    return dict(rows=rows, pairs=pairs)


def _row(name: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return success (%) by family with its interval, and episodes with a wrong object."""
    row: dict[str, object] = dict(row=name)
    for family in dict.fromkeys(outcome.case.family for outcome in outcomes):
        some = [outcome for outcome in outcomes if outcome.case.family == family]
        done = sum(outcome.success for outcome in some)
        low, high = (100 * bound for bound in wilson(done, len(some)))
        row[family] = f'{100 * done / len(some):.0f} ({low:.0f} to {high:.0f})'
    return row | dict(wrong=sum(outcome.wrong for outcome in outcomes), n=len(outcomes))


main = command('recall', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
