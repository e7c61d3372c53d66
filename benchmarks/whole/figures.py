"""Rows of the ablation table. Knows runs as `measure` returns them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from benchmarks.common import report
from benchmarks.common.paired import paired
from training.evaluate.report import wilson

MIB = 2**20
ALL = 'all'


def rows(runs: Sequence[dict]) -> list[dict]:
    """Return a row for each way.

    low, high: Wilson's 95% interval of success. p95: ms from a round's request to its chunk, None
    if no chunk came. tokens: of completed answers, per second. peak: maximum MiB of KV in use.
    to_chunk, to_step: s from a restart until the first chunk came, and until a step was in force,
    means over the restarted missions that got there.
    """
    return [_row(way, own) for way, own in by_way(runs).items()]


def by_way(runs: Sequence[dict]) -> dict[str, list[dict]]:
    """Return the runs by way, all parts on first, and sorted by group."""
    ways: dict[str, list[dict]] = {}
    for run in runs:
        ways.setdefault(run['way'], []).append(run)
    order = sorted(ways, key=lambda way: way != ALL)
    return {way: sorted(ways[way], key=lambda run: run['group']) for way in order}


def missions(runs: Sequence[dict]) -> list[dict]:
    """Return the missions of all runs, in order."""
    return [mission for run in runs for mission in run['missions']]


def _row(way: str, runs: Sequence[dict]) -> dict:
    done = [mission['success'] for mission in missions(runs)]
    low, high = wilson(sum(done), len(done))
    restarts = [m['restart'] for m in missions(runs) if m['restart'] is not None]
    return dict(
        way=way,
        n=len(done),
        success=fmean(done),
        low=low,
        high=high,
        p95=_p95([s for run in runs for s in run['latencies']]),
        tokens=sum(run['tokens'] for run in runs) / sum(run['span'] for run in runs),
        peak=max(run['peak'] for run in runs) / MIB,
        to_chunk=_mean(restart['chunk'] for restart in restarts),
        to_step=_mean(restart['acting'] for restart in restarts),
        restarts=len(restarts),
    )


def _p95(latencies: Sequence[float]) -> float | None:
    return 1e3 * float(np.percentile(latencies, 95)) if latencies else None


def _mean(values: object) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def line(run: dict) -> str:
    """Return a summary of a run as one line of text."""
    (row,) = rows([run])
    said = ', '.join(f'{n} {v:.4g}' for n, v in row.items() if isinstance(v, (int, float)))
    return f'group {run["group"]}, {row["way"]}: {said}'


def work(runs: Sequence[dict]) -> list[dict]:
    """Return the work of each way per mission: s of the device by kind, and counts."""
    made = []
    for way, own in by_way(runs).items():
        each = missions(own)
        spent: Counter[str] = sum((Counter(run['spent']) for run in own), Counter())
        made.append(
            dict(
                way=way,
                seconds=fmean(m['seconds'] for m in each),
                steps=fmean(len(m['steps']) for m in each),
                plans=fmean(m['plans'] for m in each),
                prompt_computed=_mean(share for m in each for share in m['computed_shares']),
                capsules=fmean(m['capsules'] for m in each),
                chunks=sum(len(run['latencies']) for run in own) / len(each),
                refused=sum(run['refused'] for run in own) / len(each),
                horizon=_mean(h for run in own for h in run['horizons']),
            )
            | {f'{kind}_s': s / len(each) for kind, s in sorted(spent.items())}
        )
    return made


def differences(runs: Sequence[dict]) -> list[dict]:
    """Return success with all parts on less that without one, over the same missions."""
    ways = by_way(runs)
    if ALL not in ways:
        return []
    whole = missions(ways[ALL])
    found = []
    for way, own in ways.items():
        if way == ALL:
            continue
        other = {mission['number']: mission['success'] for mission in missions(own)}
        pairs = [(m['success'], other[m['number']], m['number']) for m in whole]
        made = paired(*zip(*pairs, strict=True))
        names = 'gained', 'lost', 'difference', 'low', 'high'
        found.append(dict(less=way) | {name: made[name] for name in names})
    return found


def show(runs: Sequence[dict]) -> None:
    """Print the tables."""
    shown = [{n: '' if v is None else v for n, v in row.items()} for row in rows(runs)]
    note = 'p95: ms of actions; tokens: per s; peak: MiB of KV; to_chunk, to_step: s of a restart'
    report.show('whole: all parts on, then each off', shown, note)
    done = [{n: '' if v is None else v for n, v in row.items()} for row in work(runs)]
    kinds = {name: '' for row in done for name in row}
    report.show('whole: work of a mission', [kinds | row for row in done], 's of the device')
    if pairs := differences(runs):
        report.show('whole: success of all less each', pairs, '95% of pairs')
