"""The requests of a robot, frame by frame, from a seed: the same story for every way.

Knows rates and sizes. Does not know pools, nor what is still stored when it is requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.plane.settings import Settings

PHASES = ('talk', 'plan', 'branch')


@dataclass(frozen=True)
class Tick:
    """The requests between two frames.

    questions: tokens of each answer. units: (name, bytes) in view of plans. snapshots: bytes of
    each. restores: for each, which of the recent capsules, from 0 to 1, the newest first.
    """

    questions: tuple[int, ...]
    units: tuple[tuple[str, int], ...]
    snapshots: tuple[int, ...]
    restores: tuple[float, ...]


def story(settings: Settings, seed: int, shifting: bool) -> Iterator[Tick]:
    """Yield the requests of each frame.

    shifting: each phase requests mostly one kind; otherwise all are requested at their mean rates.
    """
    random, s = np.random.default_rng(seed), settings
    sizes = _bytes(random, s.sizes.unit_kib, s.plan.known)
    phase, ends, working = '', 0.0, np.arange(0)
    for frame in range(int(s.seconds * s.rate)):
        if frame / s.rate >= ends:
            phase = random.choice([p for p in PHASES if p != phase])
            ends += random.exponential(s.phase_seconds)
            working = random.choice(s.plan.known, s.plan.working_set, replace=False)

        def count(name: str, times: float = 1.0, phase: str = phase) -> int:
            rate = getattr(s, name)
            own = rate.own if name == phase else rate.others
            mean = (rate.own + (len(PHASES) - 1) * rate.others) / len(PHASES)
            return random.poisson(times * (own if shifting else mean) / s.rate)

        low, high = s.talk.tokens
        units = [u for _ in range(count('plan')) for u in random.choice(working, s.plan.units)]
        yield Tick(
            tuple(random.integers(low, high + 1, count('talk')).tolist()),
            tuple((f'unit {u}', int(sizes[u])) for u in units),
            tuple(_bytes(random, s.sizes.capsule_kib, count('branch')).tolist()),
            tuple(random.random(count('branch', s.branch.restores)).tolist()),
        )


def _bytes(random: np.random.Generator, kib: tuple[int, int], count: int) -> np.ndarray:
    return 1024 * random.integers(kib[0], kib[1] + 1, count)
