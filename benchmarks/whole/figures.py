"""Rows of the ablation table. Knows runs as `measure` returns them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

import numpy as np

from benchmarks.common import report
from benchmarks.common.paired import Z95, paired
from benchmarks.whole.costs import MIB
from training.evaluate.report import wilson

ALL = 'all'
PATIENCE = 0.1  # s, one action; a chunk for which the arm stood still for longer was late
# Figures of a group, and whether more is better.
COLUMNS = dict(late=False, answers=True, plans=True, peak=False, to_chunk=False, success=True)


def rows(runs: Sequence[dict]) -> list[dict]:
    """Return a row for each way: the means of `COLUMNS` over its groups, and others.

    success: with Wilson's 95% interval low, high. late: share of chunks for which the arm stood
    still for longer than an action, without the first of each step, with its 95% interval. stall:
    ms that it stood still before a chunk. answers, plans, chunks, evicted (answers cut off): per
    robot and minute. peak: MiB of KV in use. to_chunk: s from a kill, with the models loaded, to
    the first chunk of each robot; to_step: to a step in force; means over the restarted missions
    that got there. p95: ms from a round's request to its chunk. tokens: of answers, per s.
    """
    return [_row(way, own) for way, own in by_way(runs).items()]


def interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Return the 95% interval of a mean by Student's t; None for fewer than three values.

    Source of the quantile: Abramowitz and Stegun 26.7.5, within 3% for three values or more.
    """
    if len(values) < 3:
        return None, None
    n, z = len(values) - 1, Z95
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    return mean - t * error, mean + t * error


def group_figures(run: dict) -> dict[str, float | None]:
    """Return `COLUMNS` of a group; None without a chunk or a restart."""
    each = run['missions']
    minutes = sum(mission['seconds'] for mission in each) / 60
    return dict(
        late=_mean(stall > PATIENCE for stall in run['stalls']),
        answers=run['answers'] / minutes,
        plans=sum(mission['plans'] for mission in each) / minutes,
        peak=run['peak'] / MIB,
        to_chunk=_mean(restart['chunk'] for restart in _restarts([run])),
        success=fmean(mission['success'] for mission in each),
    )


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


def _restarts(runs: Sequence[dict]) -> list[dict]:
    return [restart for mission in missions(runs) for restart in mission['restarts']]


def _row(way: str, runs: Sequence[dict]) -> dict:
    done = [mission['success'] for mission in missions(runs)]
    low, high = wilson(sum(done), len(done))
    minutes = sum(mission['seconds'] for mission in missions(runs)) / 60
    groups = [group_figures(run) for run in runs]
    found = {name: _mean(group[name] for group in groups) for name in COLUMNS}
    late = interval([group['late'] for group in groups if group['late'] is not None])
    found |= dict(success=fmean(done), low=low, high=high, late_low=late[0], late_high=late[1])
    return (
        dict(way=way, n=len(done))
        | found
        | dict(
            stall=_mean(1e3 * s for run in runs for s in run['stalls']),
            chunks=sum(len(run['latencies']) for run in runs) / minutes,
            evicted=sum(run['evicted'] for run in runs) / minutes,
            p95=_p95([s for run in runs for s in run['latencies']]),
            tokens=sum(run['tokens'] for run in runs) / sum(run['span'] for run in runs),
            to_step=_mean(restart['acting'] for restart in _restarts(runs)),
            restarts=len(_restarts(runs)),
        )
    )


def _p95(latencies: Sequence[float]) -> float | None:
    return 1e3 * float(np.percentile(latencies, 95)) if latencies else None


def _mean(values: Iterable[float | None]) -> float | None:
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
                evicted=sum(run['evicted'] for run in own) / len(each),
                horizon=_mean(h for run in own for h in run['horizons']),
            )
            | {f'{kind}_s': s / len(each) for kind, s in sorted(spent.items())}
        )
    return made


def differences(runs: Sequence[dict]) -> list[dict]:
    """Return for each part and column what all parts have more than all but this one.

    Means over the same groups, success over the same missions, with 95% intervals. verdict: `pays`
    or `costs` if the interval excludes 0, '' if it does not.
    """
    ways = by_way(runs)
    whole = {run['group']: run for run in ways.pop(ALL, [])}
    found = []
    for way, own in ways.items():
        pairs = [(whole[run['group']], run) for run in own if run['group'] in whole]
        for column in COLUMNS if pairs else ():
            difference = _success(pairs) if column == 'success' else _means(pairs, column)
            if difference is not None:
                verdict = _verdict(difference, COLUMNS[column])
                found.append(dict(less=way, column=column) | difference | dict(verdict=verdict))
    return found


def _success(pairs: Sequence[tuple[dict, dict]]) -> dict:
    each = [
        (mission['success'], other['success'], run['group'])
        for run, without in pairs
        for mission, other in zip(run['missions'], without['missions'], strict=True)
    ]
    made = paired(*zip(*each, strict=True))
    return {name: made[name] for name in ('difference', 'low', 'high')}


def _means(pairs: Sequence[tuple[dict, dict]], column: str) -> dict | None:
    both = [tuple(group_figures(run)[column] for run in pair) for pair in pairs]
    more = [run - other for run, other in both if run is not None and other is not None]
    if not more:
        return None
    low, high = interval(more)
    return dict(difference=fmean(more), low=low, high=high)


def _verdict(difference: dict, more_is_better: bool) -> str:
    if difference['low'] is None or difference['low'] <= 0 <= difference['high']:
        return ''
    return 'pays' if (difference['difference'] > 0) == more_is_better else 'costs'


def show(runs: Sequence[dict]) -> None:
    """Print the tables."""
    shown = [{n: '' if v is None else v for n, v in row.items()} for row in rows(runs)]
    note = (
        'late: share of chunks; stall: ms; answers, plans, chunks, evicted: per robot '
        'and minute; peak: MiB of KV; '
        'to_chunk, to_step: s after a kill; p95: ms of actions; tokens: per s'
    )
    report.show('whole: all parts on, then each off', shown, note)
    done = [{n: '' if v is None else v for n, v in row.items()} for row in work(runs)]
    kinds = {name: '' for row in done for name in row}
    report.show('whole: work of a mission', [kinds | row for row in done], 's of the device')
    pairs = [{n: '' if v is None else v for n, v in pair.items()} for pair in differences(runs)]
    if pairs:
        report.show('whole: does a part pay? All less each', pairs, '95% of pairs')
