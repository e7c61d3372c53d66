"""What is measured, fixed before any result: a few minutes of one core, or one with `--quick`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.compress.speed.models import MISTRAL_SLICE, PI05_SLICE, SMALL, SMALL_8

K = 1024


@dataclass(frozen=True)
class Steps:
    """Decode steps: of every context, in tokens, and every batch, so often."""

    contexts: Sequence[int]
    batches: Sequence[int]
    repeats: int


@dataclass(frozen=True)
class Plan:
    """Repeats are those that count: a round of warm-up comes before them everywhere.

    answers: of a model, repeats by views. steps: by model. sharing: streams of one frame, of
    `shared` tokens. deferred: streams about frames of two views. batches: of what is served, about
    frames of `served` views. cache: size of the one that is filled, in prefixes of two views.
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
