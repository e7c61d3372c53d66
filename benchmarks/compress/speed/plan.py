"""Amount of measurement, fixed before any result: minutes of a core, or one with `--quick`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.compress.speed.models import MISTRAL_SLICE, PI05_SLICE, SMALL, SMALL_8

K = 1024


@dataclass(frozen=True)
class Steps:
    """Decode steps: of every context (tokens) and every batch, `repeats` times."""

    contexts: Sequence[int]
    batches: Sequence[int]
    repeats: int


@dataclass(frozen=True)
class Plan:
    """The amount of measurement; a warm-up round comes before the counted repeats.

    answers: of a model, repeats by views. steps: by model. sharing: streams about one frame of
    `shared` tokens. deferred: streams about frames of two views. batches: of what is served, about
    frames of `served` views. cache: size of the cache that is filled, in prefixes of two views.
    """

    answers: Mapping[str, Mapping[int, int]]
    steps: Mapping[str, Steps]
    sharing: Sequence[int]
    shared: int
    deferred: Sequence[int]
    batches: Sequence[int]
    served: int
    cache: int


WHOLE = Plan(
    answers={SMALL: {1: 2, 2: 2, 4: 1}, SMALL_8: {2: 1}},
    steps={
        SMALL: Steps((K, 2 * K, 4 * K, 8 * K, 16 * K, 32 * K), (1, 2, 4, 8, 16), 6),
        SMALL_8: Steps((K, 2 * K, 4 * K, 8 * K, 16 * K), (1, 4, 16), 4),
        PI05_SLICE: Steps((2 * K, 8 * K, 32 * K), (1, 4, 16), 4),
        MISTRAL_SLICE: Steps((2 * K, 8 * K, 32 * K), (1, 4, 16), 4),
    },
    sharing=(1, 4, 16),
    shared=8 * K,
    deferred=(1, 4, 16),
    batches=(1, 2, 4, 8, 16, 32, 64),
    served=2,
    cache=32,
)
QUICK = Plan(
    answers={SMALL: {1: 1}},
    steps={SMALL: Steps((K, 8 * K), (1, 16), 4), SMALL_8: Steps((8 * K,), (1, 4), 2)},
    sharing=(16,),
    shared=8 * K,
    deferred=(1,),
    batches=(1, 8),
    served=1,
    cache=10,
)
