"""Figures from outcomes and answers: rates with intervals, differences between serving modes.

This module only counts. It does not know how outcomes and answers are made.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
from rich.console import Console
from rich.table import Table

from training.evaluate.cases import Case, Outcome
from training.evaluate.questions import Answer

Z95 = 1.959964  # standard deviations: 95% of a normal distribution lie within
NEAR = 'subtask, within one frame'


def wilson(k: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Return the interval of a rate with k successes in n (Wilson 1927, eq. 4)."""
    if n == 0:
        return 0.0, 1.0
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    return max(0.0, centre - half), min(1.0, centre + half)


def rate(k: int, n: int) -> dict:
    """Return a count, its share and the share's 95% interval."""
    low, high = wilson(k, n)
    return dict(k=k, n=n, rate=round(k / n, 4), low=round(low, 4), high=round(high, 4))


def action_rows(
    outcomes: Sequence[Outcome], reference: Mapping[Case, Outcome] | None = None
) -> list[dict]:
    """Return a row per family, then one of all.

    reference: an expert's outcomes of the same cases, for the ratio of path lengths where both
    succeeded.
    """
    families = list(dict.fromkeys(outcome.case.family for outcome in outcomes))
    rows = []
    for family in [*families, 'all'] if len(families) > 1 else families:
        some = [o for o in outcomes if family in (o.case.family, 'all')]
        done = [o for o in some if o.success]
        by_seed = defaultdict(int)
        for outcome in some:
            by_seed[outcome.case.seed] += outcome.success
        ratios = [
            o.path / reference[o.case].path
            for o in (done if reference else ())
            if reference[o.case].success
        ]
        rows.append(
            dict(
                family=family,
                success=rate(len(done), len(some)),
                success_by_seed=list(by_seed.values()),
                wrong=rate(sum(o.wrong for o in some), len(some)),
                seconds=_median(o.seconds for o in done),
                path=_median(o.path for o in done),
                path_ratio=_median(ratios),
                first_chunks=digest(some),
                outcomes=''.join('s' if o.success else 'w' if o.wrong else '.' for o in some),
            )
        )
    return rows


def text_rows(answers: Sequence[Answer], subtasks: Mapping[Case, Sequence[str]]) -> list[dict]:
    """Return a row per kind of question. commonest: share of the most frequent correct answer.

    subtasks: the correct one of every frame. A further row counts subtasks that are correct for
    the frame or an adjacent one.
    """
    by_kind: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_kind[answer.question.kind].append(answer)
    rows = []
    for kind, some in sorted(by_kind.items()):
        commonest = Counter(a.question.truth for a in some).most_common(1)[0][1] / len(some)
        counts = {kind: sum(a.is_exact for a in some)}
        if kind == 'subtask':
            counts[NEAR] = sum(_is_near(a, subtasks[a.question.case]) for a in some)
        rows += [
            dict(kind=name, exact=rate(count, len(some)), commonest=round(commonest, 4))
            for name, count in counts.items()
        ]
    return rows


def _is_near(answer: Answer, truths: Sequence[str]) -> bool:
    first = max(0, answer.question.number - 1)
    return answer.said.strip() in truths[first : answer.question.number + 2]


def pair_rows(modes: Mapping[str, Sequence[Outcome]]) -> list[dict]:
    """Return how two serving modes differ on the same cases, a row per pair.

    same: share of episodes with the same result. only_first, only_second: successes of one alone
    (the discordant pairs of McNemar's test). first_chunks: largest difference of the first chunks,
    rad or m.
    """
    rows = []
    for (one, first), (other, second) in combinations(modes.items(), 2):
        pairs = list(zip(first, second, strict=True))
        rows.append(
            dict(
                modes=f'{one}, {other}',
                n=len(pairs),
                same=sum((a.success, a.wrong) == (b.success, b.wrong) for a, b in pairs)
                / len(pairs),
                only_first=sum(a.success and not b.success for a, b in pairs),
                only_second=sum(b.success and not a.success for a, b in pairs),
                first_chunks=max(float(np.abs(a.first - b.first).max()) for a, b in pairs),
            )
        )
    return rows


def digest(outcomes: Iterable[Outcome]) -> str:
    """Return 16 hex digits of all first chunks, rounded to a millionth of a rad or m."""
    sha = hashlib.sha256()
    for outcome in outcomes:
        sha.update(np.round(outcome.first * 1e6).astype(np.int64).tobytes())
    return sha.hexdigest()[:16]


def show_actions(title: str, rows: Sequence[dict], note: str) -> None:
    """Print the table of `action_rows`."""
    shown = [
        {
            'family': row['family'],
            **_share('success', row['success']),
            'by seed': ' '.join(map(str, row['success_by_seed'])),
            'wrong object': _percent(row['wrong']),
            'median s': _number(row['seconds']),
            'path m': _number(row['path']),
            'of expert': _number(row['path_ratio']),
            'first chunks': row['first_chunks'],
        }
        for row in rows
    ]
    show(title, shown, note)


def show_text(title: str, rows: Sequence[dict]) -> None:
    """Print the table of `text_rows`."""
    shown = [
        {
            'question': row['kind'],
            **_share('exact', row['exact']),
            'commonest answer': f'{100 * row["commonest"]:.1f}%',
        }
        for row in rows
    ]
    show(
        title, shown, 'frames of an episode are alike: the intervals are narrower than they ought'
    )


def show(title: str, rows: Sequence[dict], note: str = '') -> None:
    """Print rows of equal keys as a table."""
    table = Table(title=title, title_justify='left', caption=note or None, caption_justify='left')
    for name in rows[0] if rows else ():
        table.add_column(name.replace('_', ' '), justify='right')
    for row in rows:
        table.add_row(*(_number(v) if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=None if os.isatty(1) else 160).print(table)


def _median(values: Iterable[float]) -> float | None:
    values = list(values)
    return round(statistics.median(values), 4) if values else None


def _number(value: float | None) -> str:
    return '' if value is None else f'{value:.3g}'


def _share(name: str, share: dict) -> dict:
    """Return the columns of a rate. name: of what is counted."""
    return {
        'n': share['n'],
        name: share['k'],
        'rate': _percent(share),
        '95%': _interval(share),
    }


def _percent(share: dict) -> str:
    return f'{100 * share["rate"]:.1f}%'


def _interval(share: dict) -> str:
    return f'{100 * share["low"]:.1f} to {100 * share["high"]:.1f}'
