"""Figures of fleets with language. Knows runs as `lockstep` returns them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from benchmarks.common import report

AIM_P95, AIM_WORDS = 1.02, 3.0


def rows(runs: Sequence[dict]) -> list[dict]:
    """Return a row per size of fleet, load and delay.

    p95: s from a round's request to its answer, of the mute fleet, of the speaking one, and where
    each robot has an engine of its own. words: per second, of all robots, also where each has its
    own. answers: finished or not, per second. shares: of the time in which the engine computed
    language, and chunks.
    """
    made = []
    for robots, load, delay in dict.fromkeys(map(_point, _together(runs))):
        (mute,), (speaking,) = (
            [run for run in runs if run['way'] == way and _point(run) == (robots, load, delay)]
            for way in ('mute', 'speaking')
        )
        alike = [run for run in runs if _point(run)[:2] == (robots, load)]
        apart = [run for run in alike if run['way'] == 'alone']
        words, words_apart = _words(speaking), robots * fmean(map(_words, apart))
        made.append(
            dict(
                robots=robots,
                load=load,
                delay_ms=1e3 * delay,
                speed=mute['speed'],
                rounds=len(mute['latencies']),
                p95_mute=_p95([mute]),
                p95_speaking=_p95([speaking]),
                p95_ratio=_p95([speaking]) / _p95([mute]),
                average_ratio=fmean(speaking['latencies']) / fmean(mute['latencies']),
                p95_alone=_p95(apart),
                words=words,
                words_alone=words_apart,
                words_ratio=words / words_apart if words_apart else float('inf'),
                answers=len(speaking['said']) / speaking['span'],
                share_words=speaking['spoken'] / speaking['span'],
                share_chunks=speaking['charged'] / speaking['span'],
            )
        )
    return made


def _together(runs: Sequence[dict]) -> list[dict]:
    """Return the runs in which robots share an engine."""
    return [run for run in runs if run['way'] != 'alone']


def _point(run: dict) -> tuple[int, float, float]:
    return run['robots'], run['load'], run['delay']


def _p95(runs: Sequence[dict]) -> float:
    return float(np.percentile([s for run in runs for s in run['latencies']], 95))


def _words(run: dict) -> float:
    """Return the words per second."""
    return sum(len(text.split()) for text in run['said']) / run['span']


def show(made: Sequence[dict]) -> None:
    """Print two tables: what language costs the actions, and the words that it gives."""
    report.show(
        'fleet.speech: P95 of rounds, ms',
        [
            dict(
                robots=row['robots'],
                load=row['load'],
                held_ms=row['delay_ms'],
                speed=row['speed'],
                rounds=row['rounds'],
                mute=row['p95_mute'] * 1e3,
                speaking=row['p95_speaking'] * 1e3,
                ratio=f'{row["p95_ratio"]:.3f}',
                of_averages=f'{row["average_ratio"]:.3f}',
                own_engines=row['p95_alone'] * 1e3,
            )
            for row in made
        ],
        f'from request to answer; aim: a ratio of at most {AIM_P95}',
    )
    report.show(
        'fleet.speech: words per second',
        [
            dict(
                robots=row['robots'],
                load=row['load'],
                held_ms=row['delay_ms'],
                fleet=row['words'],
                own_engines=row['words_alone'],
                ratio=f'{row["words_ratio"]:.2f}',
                answers_per_s=row['answers'],
                speaks=f'{row["share_words"]:.0%}',
                computes_chunks=f'{row["share_chunks"]:.0%}',
            )
            for row in made
        ],
        f'own engines: one per robot at equal total cores; aim: a ratio of at least {AIM_WORDS:g}',
    )
