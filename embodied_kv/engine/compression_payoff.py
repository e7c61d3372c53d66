"""Whether compression for language shortens answers on this machine, by measured times.

A stream reads the whole prefix until its choice of tokens, and its own copy afterwards. So each
answer measures both, and the time of the choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from embodied_kv.engine.time_budget import LatencyEstimator
from embodied_kv.kv.decode_stream import DecodeStream

WHOLE, COPIES, CHOICE = 'decode whole', 'decode copies', 'choice'
LEAST = 3  # measurements of a size before it counts


def kind_of_step(streams: Iterable[DecodeStream]) -> str:
    """Return the kind of a decode step of these streams, '' if only some read copies."""
    read = {stream.lease.is_copy for stream in streams}
    return '' if len(read) != 1 else COPIES if read.pop() else WHOLE


@dataclass(frozen=True)
class CompressionPayoff:
    """The times (s) of one stream, at the batch size that was measured most.

    whole, copies: of a token that reads the whole prefix, or a copy. choice: of the choice of
    tokens, in addition to the token that is decoded with it.
    """

    whole: float
    copies: float
    choice: float

    @property
    def tokens(self) -> float:
        """Return the tokens after the choice from which on it shortens an answer, or infinity."""
        saved = self.whole - self.copies
        return self.choice / saved if saved > 0 else math.inf

    def __str__(self) -> str:
        times = (
            f'a token takes {self.copies * 1e3:.1f} ms instead of {self.whole * 1e3:.1f} ms, and '
            f'the choice of tokens {self.choice * 1e3:.1f} ms'
        )
        if self.tokens == math.inf:
            return f'compression saves memory but no time on this machine: {times}'
        return f'compression shortens answers from {math.ceil(self.tokens)} tokens on: {times}'


def payoff(latency: LatencyEstimator) -> CompressionPayoff | None:
    """Return the payoff by the measurements so far; None if they are too few."""
    sizes = [
        (min(latency.count(WHOLE, size), latency.count(COPIES, size)), size)
        for size in set(latency.sizes(WHOLE)) & set(latency.sizes(COPIES))
    ]
    measured, size = max(sizes, default=(0, 0))
    choices = [(latency.count(CHOICE, n), n) for n in latency.sizes(CHOICE)]
    chosen, tokens = max(choices, default=(0, 0))
    if min(measured, chosen) < LEAST:
        return None
    whole, copies = (latency.median(kind, size) / size for kind in (WHOLE, COPIES))
    return CompressionPayoff(whole, copies, max(0.0, latency.median(CHOICE, tokens) - whole))
