"""Time budget: what work costs, what fits before a deadline, what is left for language.

Knows clocks and measured durations (seconds, `time.monotonic`). Does not know tensors or rows.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager


class Costs:
    """Measured durations by kind and batch size; the estimate is a high quantile of the latest.

    A first, warming-up run says nothing about the next one: whoever warms up does not observe.
    """

    def __init__(self, window: int = 64, quantile: float = 0.9) -> None:
        self._measured: dict[str, dict[int, deque[float]]] = defaultdict(dict)
        self._window, self._quantile = window, quantile

    def observe(self, kind: str, seconds: float, size: int = 1) -> None:
        self._measured[kind].setdefault(size, deque(maxlen=self._window)).append(seconds)

    def clear(self) -> None:
        """Forget everything: what was measured until now was warming up."""
        self._measured.clear()

    def estimate(self, kind: str, size: int = 1) -> float:
        """Seconds, of the next larger measured batch, or scaled up from the largest.

        0 before any is measured.
        """
        sizes = self._measured[kind]
        if not sizes:
            return 0.0
        nearest = self._nearest(sizes, size)
        return self._rank(sizes[nearest], self._quantile) * max(1.0, size / nearest)

    def forget_oldest(self, kind: str, size: int = 1) -> None:
        """Drop the oldest duration that the estimate of this kind and size rests on, if any."""
        sizes = self._measured[kind]
        if not sizes:
            return
        nearest = self._nearest(sizes, size)
        sizes[nearest].popleft()
        if not sizes[nearest]:
            del sizes[nearest]

    def median(self, kind: str, size: int = 1) -> float:
        """Seconds of the latest work of exactly this kind and batch size; 0 before any."""
        return self._rank(self._measured[kind].get(size, ()), 0.5)

    @staticmethod
    def _nearest(sizes: Collection[int], size: int) -> int:
        return min((s for s in sizes if s >= size), default=max(sizes))

    @staticmethod
    def _rank(seconds: Collection[float], quantile: float) -> float:
        ordered = sorted(seconds)
        return ordered[int(quantile * (len(ordered) - 1))] if ordered else 0.0


class TimeBudget:
    """Plans Euler steps against a deadline, decode steps into the slack before the next prefill.

    period: s between two frames. margin: s kept free before each deadline and each expected
    prefill. allowed: s from a frame to its deadline, if not a period. With `enabled` off
    everything is always allowed.

    forecast: where frames do not come by a period, says of a moment for how many seconds from then
    on none is waiting or expected.
    """

    def __init__(
        self,
        costs: Costs,
        *,
        period: float,
        margin: float,
        euler_steps: int,
        min_euler_steps: int,
        enabled: bool = True,
        allowed: float | None = None,
    ) -> None:
        self.costs, self.period, self.margin = costs, period, margin
        self.allowed = period if allowed is None else allowed
        self.euler_steps, self.min_euler_steps, self.enabled = (
            euler_steps,
            min_euler_steps,
            enabled,
        )
        self.forecast: Callable[[float], float] | None = None
        self._last_frame = -math.inf
        self._gave_up: dict[str, float] = {}  # kind of work -> frame in which it did last

    def frame_began(self, now: float) -> None:
        """A prefill starts; the next one is expected a period later."""
        self._last_frame = now

    def euler_plan(self, now: float, deadline: float, batch: int = 1) -> int:
        """As `steps_before`, for the work that follows; it gives up hopeless estimates."""
        steps = self.steps_before(now, deadline, batch)
        if deadline < math.inf:
            self.give_up(batch)
        return steps

    def steps_before(self, now: float, deadline: float, batch: int = 1) -> int:
        """Euler steps that finish before the deadline, at most `euler_steps`.

        0 if fewer than `min_euler_steps` would; these while nothing is measured; all of them where
        the deadline is infinite.
        """
        if not self.enabled or deadline == math.inf:
            return self.euler_steps
        step = self.costs.estimate('denoise_step', batch)
        left = deadline - self.margin - now
        fewest = self.min_euler_steps
        steps = fewest if step == 0 else int(min(self.euler_steps, max(0.0, left / step)))
        return steps if left > 0 and steps >= fewest else 0

    def give_up(self, batch: int = 1) -> None:
        """Forgets the oldest measurement of an estimate by which no frame could be in time.

        Work does not renew it, as none is done: so one frame is tried again some time.
        """
        step = self.costs.estimate('denoise_step', batch)
        at_best = self.allowed - self.margin - self.costs.estimate('prefill', batch)
        if self.enabled and 0 < at_best < self.min_euler_steps * step:
            self.costs.forget_oldest('denoise_step', batch)

    @contextmanager
    def at_most(self, steps: int) -> Iterator[None]:
        """Within it no more Euler steps than these are planned; on the engine's thread."""
        whole = self.euler_steps
        self.euler_steps = min(whole, max(self.min_euler_steps, steps))
        try:
            yield
        finally:
            self.euler_steps = whole

    def slack(self, now: float) -> float:
        """Seconds until the next prefill is expected; unbounded once frames stop coming."""
        if self.forecast is not None:
            return self.forecast(now) - self.margin
        since = now - self._last_frame
        return math.inf if since > 2 * self.period else self.period - self.margin - since

    def times(self, now: float, kind: str, size: int, most: int) -> int:
        """How often work of this kind and batch size fits the slack: once to `most` times."""
        cost = self.costs.estimate(kind, size)
        fits = self.slack(now) / cost if self.enabled and cost else math.inf
        return max(1, int(min(most, fits)))

    def admits(self, now: float, kind: str, size: int = 1) -> bool:
        """Whether work of this kind and batch size fits the slack.

        An estimate that fits no period gives up its oldest measurement once a frame, as in
        `euler_plan`.
        """
        cost = self.costs.estimate(kind, size)
        if not self.enabled or cost <= self.slack(now):
            return True
        if cost > self.period - self.margin and self._gave_up.get(kind) != self._last_frame:
            self._gave_up[kind] = self._last_frame
            self.costs.forget_oldest(kind, size)
        return False
