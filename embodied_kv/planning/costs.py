"""The measured costs of KEEP and of full recomputation, by which `auto` chooses for each plan.

KEEP computes fewer tokens, but loads the others and chooses among them after each layer. With a
small planner or a short prompt this takes longer than it saves (docs/benchmarks/memory.md).
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque

log = logging.getLogger(__name__)

AUTO, FULL, KEEP = 'auto', 'full', 'keep'
NEAR = 2.0  # maximum ratio of the token counts of two comparable prompts
LEAST = 3  # measurements of comparable prompts before a method is judged
NEWEST = 64  # measurements that are kept of a method


class PlanCosts:
    """Chooses the method of a plan by the times of earlier plans. For one thread.

    chosen: number of plans by method. seconds_saved: by the plans with KEEP, compared with full
    recomputation; negative while KEEP is measured where it does not pay.
    """

    def __init__(self) -> None:
        self._taken = {method: deque[tuple[int, float]](maxlen=NEWEST) for method in (FULL, KEEP)}
        self._preferred = ''
        self.chosen = {FULL: 0, KEEP: 0}
        self.seconds_saved = 0.0

    def add(self, method: str, tokens: int, seconds: float) -> None:
        """Record the prefill of a prompt with that many tokens; other methods are ignored."""
        if method not in self._taken:
            return
        self._taken[method].append((tokens, seconds))
        self.chosen[method] += 1
        full = self.seconds(FULL, tokens)
        if method == KEEP and full is not None:
            self.seconds_saved += full - seconds

    def seconds(self, method: str, tokens: int) -> float | None:
        """Return the expected time of such a prefill; None where it was not measured."""
        rates = [
            taken / others
            for others, taken in self._taken[method]
            if max(others, tokens) <= NEAR * min(others, tokens)
        ]
        return statistics.median(rates) * tokens if len(rates) >= LEAST else None

    def choose(self, tokens: int, missing: int = 0) -> str:
        """Return FULL or KEEP for a prompt. missing: its tokens whose KV is not stored.

        A method that was not measured for such prompts is measured first.
        """
        full, keep = self.seconds(FULL, tokens), self.seconds(KEEP, tokens)
        if full is None or keep is None:
            return FULL if full is None else KEEP
        preferred = KEEP if keep + full * missing / tokens < full else FULL
        if preferred != self._preferred and not missing:
            self._preferred = preferred
            log.info(
                'plans of about %d tokens use %s (measured: full %.3f s, keep %.3f s)',
                tokens,
                preferred,
                full,
                keep,
            )
        return preferred

    def pays(self, tokens: int) -> bool:
        """Return whether stored KV may shorten plans of that length, or is not measured yet."""
        full, keep = self.seconds(FULL, tokens), self.seconds(KEEP, tokens)
        return full is None or (keep or -math.inf) < full
