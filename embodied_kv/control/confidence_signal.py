"""Measure whether the confidence of an action predicts how little the next chunk revises it.

An execution horizon by confidence (Kairos, section 3.1) helps only if a confident action stays as
it is. Each chunk is compared with the next one at the moments that both cover: the revision of an
action is the distance between the two, in units of the mean revision of each dimension. Two
successive chunks are then compared action by action, at equal indices, because a constant horizon
knows the mean of each index already: a comparison agrees if the more confident action was revised
less. Without a signal half of the comparisons agree. A share below SIGNAL does not help, however
certain it is.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control.execution_horizon import Confidence, Policy, Static
from embodied_kv.types import ActionChunk

FEWEST = 50  # pairs of chunks before the signal is judged
SIGNAL = 0.55  # smallest share of comparisons that agree
Z95 = 1.96


class ConfidenceSignal:
    """The signal in the chunks of one robot. One thread at a time may call `see`.

    pairs: number of pairs of chunks that were compared.
    """

    def __init__(self) -> None:
        self.pairs = 0
        self._last: tuple[ActionChunk, NDArray[np.float32], float] | None = None
        self._first: tuple[NDArray[np.float32], NDArray[np.float64]] | None = None
        self._sums, self._count = np.zeros(0), 0  # of distances by dimension, and their number
        self._agreed = self._squares = 0.0  # sums over the pairs: the share that agrees, squared
        self._horizons = self._chunks = 0

    def restart(self) -> None:
        """Compare nothing with the chunks before, as after a new instruction."""
        self._last = self._first = None

    def see(self, chunk: ActionChunk, began: float) -> None:
        """Compare a chunk with the one before.

        Args:
            chunk: The chunk. Nothing is compared without its confidence and execution horizon.
            began: Moment (s) of its first action.
        """
        if chunk.confidence is None or chunk.execution_horizon is None:
            return
        self._horizons, self._chunks = self._horizons + chunk.execution_horizon, self._chunks + 1
        last, self._last = self._last, (chunk, chunk.confidence, began)
        first, self._first = self._first, None  # pairs do not overlap: they are independent
        if last is None:
            return
        before, sure, at = last
        revisions = self._revisions_of(before, at, chunk, began)
        if revisions is None:
            return
        if first is None:
            self._first = sure, revisions
            return
        surer, more = first[0] - sure, first[1] - revisions
        differs = np.isfinite(more) & (surer != 0) & (more != 0)
        if differs.any():
            agreed = float((surer[differs] * more[differs] < 0).mean())
            self.pairs += 1
            self._agreed, self._squares = self._agreed + agreed, self._squares + agreed**2

    def _revisions_of(
        self, last: ActionChunk, began: float, chunk: ActionChunk, begins: float
    ) -> NDArray[np.float64] | None:
        """Return the revision of each action of the last chunk, NaN where the new one has none.

        The result is None if the chunks have no moment in common.
        """
        moments = began + np.arange(len(last.values)) * last.dt
        known = begins + np.arange(len(chunk.values)) * chunk.dt
        common = (moments >= known[0]) & (moments <= known[-1])
        if begins <= began or not common.any() or last.values.shape != chunk.values.shape:
            return None
        now = np.stack([np.interp(moments, known, column) for column in chunk.values.T], 1)
        distances = np.abs(now - last.values)
        if self._sums.shape != distances.shape[1:]:
            self._sums, self._count = np.zeros(distances.shape[1]), 0
        self._sums, self._count = self._sums + distances[common].sum(0), self._count + common.sum()
        mean = self._sums / self._count
        shares = distances / np.where(mean > 0, mean, math.inf)
        return np.where(common, shares.mean(1), math.nan)

    def estimate(self) -> tuple[float, float, float]:
        """Return the share of comparisons that agree, and its 95% interval; NaN if unknown."""
        if self.pairs < 2:
            return math.nan, math.nan, math.nan
        mean = self._agreed / self.pairs
        variance = max(0.0, self._squares - self.pairs * mean**2) / (self.pairs - 1)
        error = Z95 * (variance / self.pairs) ** 0.5
        return mean, mean - error, mean + error

    @property
    def is_absent(self) -> bool:
        """Whether at least FEWEST pairs show no signal."""
        return self.pairs >= FEWEST and self._agreed < SIGNAL * self.pairs

    def validated(self, policy: Policy) -> Policy:
        """Return the policy, or a constant horizon of the same mean if there is no signal."""
        if not isinstance(policy, Confidence) or not self.is_absent:
            return policy
        return Static(max(policy.minimum, round(self._horizons / self._chunks)))

    def __str__(self) -> str:
        """Return the estimate as text."""
        mean, low, high = self.estimate()
        return f'{mean:.2f} ({low:.2f} to {high:.2f}, {self.pairs} pairs of chunks)'
