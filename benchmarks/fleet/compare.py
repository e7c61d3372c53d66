"""Kairos compared with its baselines, ours and the paper's, and whether the aims are reached.

Knows the rows of the experiments. Does not simulate. Differences are paired: one seed (the same
tasks and arrivals) under two ways; seeds are the independent units.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.fleet.paper import SYSTEMS, TABLE
from benchmarks.fleet.runs import HIGHEST, PENDING

FIGURES = ('p25', 'average', 'p95')
BASELINES = ('fifo', 'autellix')
T95 = (
    12.71,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
)  # Student's, from 1 degree on
AIMS = dict(average=8.0, p25=21.0)  # % of FIFO's latency saved by the order alone, Table 2's least
TOLERANCE = 1.0  # %; a difference below this counts as equal
REACHED, MISSED, UNDECIDED = 'reached', 'missed', 'undecided'


def saved(of: dict, against: dict) -> dict[str, dict[str, float]]:
    """Return the percent of latency saved: P25, average, P95; negative where it is worse.

    saved: the mean over seeds; low, high: its 95% interval (t; infinite for one seed). Raises
    ValueError for more seeds than T95 covers.
    """
    found, most = {}, len(T95) + 1
    if len(of['seeds']) > most:
        raise ValueError(f'{len(of["seeds"])} seeds: the intervals are of at most {most}')
    for key in FIGURES:
        pairs = zip(of['seeds'], against['seeds'], strict=True)
        values = [100 * (1 - ours[key] / theirs[key]) for ours, theirs in pairs]
        mean, error = statistics.fmean(values), float('inf')
        if len(values) > 1:
            error = T95[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5
        found[key] = dict(saved=mean, low=mean - error, high=mean + error)
    return found


def table(online: Sequence[dict]) -> list[dict]:
    """Return Table 2 at the highest rate, ours and the paper's, by workload and baseline."""
    at = {
        (row['workload'], row['horizon'], row['scheduler']): row
        for row in online
        if row['share'] == HIGHEST
    }
    rows = []
    for workload in dict.fromkeys(row['workload'] for row in online):
        for baseline in BASELINES:
            against = at[workload, 'static', baseline]
            row = dict(workload=workload, against=baseline)
            ways = (('dynamic', 'kairos'), ('static', 'kairos'), ('dynamic', baseline))
            for i, (system, way) in enumerate(zip(SYSTEMS, ways, strict=True)):
                row[system] = saved(at[(workload, *way)], against)
                if workload in TABLE[baseline]:
                    row[f'{system}, paper'] = dict(
                        zip(FIGURES, TABLE[baseline][workload][i], strict=True)
                    )
            row[PENDING] = saved(at[workload, 'static', PENDING], against)
            rows.append(row)
    return rows


def gate(online: Sequence[dict]) -> list[dict]:
    """Return Autellix' average over FIFO's by share of the peak, with static horizons."""
    at = {
        (r['workload'], r['share'], r['scheduler']): r for r in online if r['horizon'] == 'static'
    }
    return [
        dict(workload=name)
        | {
            f'{share:g}': at[name, share, 'autellix']['average']
            / at[name, share, 'fifo']['average']
            for share in dict.fromkeys(row['share'] for row in online)
        }
        for name in dict.fromkeys(row['workload'] for row in online)
    ]


def worse(online: Sequence[dict]) -> list[dict]:
    """Return where P25, average or P95 of Kairos exceeds a baseline's, with equal horizons.

    Only differences above TOLERANCE count. sure: whether the whole interval is worse.
    """
    at = {(r['workload'], r['share'], r['horizon'], r['scheduler']): r for r in online}
    rows = []
    for (workload, share, horizon, name), ours in at.items():
        if name not in ('kairos', PENDING):
            continue
        for baseline in BASELINES:
            place = dict(workload=workload, share=share, horizon=horizon, scheduler=name)
            for figure, found in saved(ours, at[workload, share, horizon, baseline]).items():
                if found['saved'] < -TOLERANCE:
                    what = place | dict(than=baseline, figure=figure)
                    rows.append(what | found | dict(sure=found['high'] < 0))
    return rows


def aims(online: Sequence[dict], valid: dict[str, bool]) -> list[dict]:
    """Return what the order alone saves, and which aims are reached.

    There is a row per workload and variant of Kairos. Savings are against FIFO, at the highest
    rate, with static horizons: `verdict`. never worse: than either baseline at any rate.
    """
    bad = {
        (row['workload'], row['scheduler'], row['figure'])
        for row in worse(online)
        if row['horizon'] == 'static'
    }
    at = {
        (row['workload'], row['scheduler']): row
        for row in online
        if row['share'] == HIGHEST and row['horizon'] == 'static'
    }
    rows = []
    for (workload, name), ours in at.items():
        if name not in ('kairos', PENDING):
            continue
        found = {key: saved(ours, at[workload, 'fifo'])[key] for key in AIMS}
        rows.append(
            dict(workload=workload, valid=valid.get(workload), scheduler=name)
            | found
            | {f'{key} aim': verdict(found[key], least) for key, least in AIMS.items()}
            | {f'{key} never worse': (workload, name, key) not in bad for key in AIMS}
        )
    return rows


def verdict(found: dict[str, float], least: float) -> str:
    """Return reached or missed if the whole interval of the savings is; else undecided."""
    if found['low'] >= least:
        return REACHED
    return MISSED if found['high'] < least else UNDECIDED
