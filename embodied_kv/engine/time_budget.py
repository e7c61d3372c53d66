"""Latency estimates, the Euler steps that fit before a deadline, and idle time for language.

Times are in seconds of `time.monotonic`.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

TRIES = 3  # measurements of a size before it is judged
RETRY = 256  # pieces of divided work after which all sizes are measured again
STARVED = 8  # frames in a row without room for work, after which its estimate is doubted
DOUBTS = 512  # largest number of such frames
DOUBTED = 16  # chunks after which a measurement of more candidates, which do not fit, is dropped


class LatencyEstimator:
    """Measured durations by kind and batch size; an estimate is a high quantile of recent ones.

    The first runs after a start are warm-up and must not be observed.
    """

    def __init__(self, window: int = 64, quantile: float = 0.9) -> None:
        self._measured: dict[str, dict[int, deque[float]]] = defaultdict(dict)
        self._window, self._quantile = window, quantile

    def observe(self, kind: str, seconds: float, size: int = 1) -> None:
        self._measured[kind].setdefault(size, deque(maxlen=self._window)).append(seconds)

    def clear(self) -> None:
        self._measured.clear()

    def estimate(self, kind: str, size: int = 1) -> float:
        """Return the duration (s) at the next larger measured size, or scaled up from the largest.

        0 without a measurement.
        """
        sizes = self._measured[kind]
        if not sizes:
            return 0.0
        nearest = self._nearest(sizes, size)
        return self._rank(sizes[nearest], self._quantile) * max(1.0, size / nearest)

    def forget_oldest(self, kind: str, size: int = 1) -> None:
        """Drop the oldest measurement that this estimate rests on, if any."""
        sizes = self._measured[kind]
        if not sizes:
            return
        nearest = self._nearest(sizes, size)
        sizes[nearest].popleft()
        if not sizes[nearest]:
            del sizes[nearest]

    def forget_oldest_from(self, kind: str, size: int = 1) -> bool:
        """Drop the oldest measurement of the next size from this one on; return False if none."""
        larger = [measured for measured in self._measured[kind] if measured >= size]
        if larger:
            self.forget_oldest(kind, size)
        return bool(larger)

    def forget(self, kind: str, sizes: Collection[int]) -> None:
        """Drop the measurements of these sizes."""
        for size in sizes:
            self._measured[kind].pop(size, None)

    def sizes(self, kind: str) -> tuple[int, ...]:
        """Return the measured sizes of a kind."""
        return tuple(self._measured[kind])

    def count(self, kind: str, size: int = 1) -> int:
        """Return how many measurements of exactly this kind and size are kept."""
        return len(self._measured[kind].get(size, ()))

    def median(self, kind: str, size: int = 1) -> float:
        """Return the median duration (s) of exactly this kind and size; 0 without one."""
        return self._rank(self._measured[kind].get(size, ()), 0.5)

    @staticmethod
    def _nearest(sizes: Collection[int], size: int) -> int:
        return min((s for s in sizes if s >= size), default=max(sizes))

    @staticmethod
    def _rank(seconds: Collection[float], quantile: float) -> float:
        ordered = sorted(seconds)
        return ordered[int(quantile * (len(ordered) - 1))] if ordered else 0.0


class TimeBudget:
    """Plans Euler steps before a deadline, and decode steps in the idle time before a prefill.

    period: time (s) between two frames. margin: time (s) kept free before each deadline and each
    expected prefill. allowed: time (s) from a frame to its deadline, by default a period. enabled:
    False permits everything at any time. longest: time (s) for which an unexpected frame may wait
    for a unit of other work, if that work can be divided. forecast: for frames without a period,
    returns for how long (s) after a moment no frame waits or is expected.
    """

    def __init__(
        self,
        latency: LatencyEstimator,
        *,
        period: float,
        margin: float,
        euler_steps: int,
        min_euler_steps: int,
        enabled: bool = True,
        allowed: float | None = None,
        longest: float = math.inf,
    ) -> None:
        self.longest = longest if enabled else math.inf
        self.latency, self.period, self.margin = latency, period, margin
        self.allowed = period if allowed is None else allowed
        self.euler_steps, self.min_euler_steps, self.enabled = (
            euler_steps,
            min_euler_steps,
            enabled,
        )
        self.forecast: Callable[[float], float] | None = None
        self._pieces = self._doubts = 0  # of divided work; candidates that do not fit
        self._last_frame = -math.inf
        self.hopeless = 0  # batches in a row of which nothing was tried
        # By kind and size of work: the last frame without room for it, how many there were in a
        # row, and after how many its estimate is doubted.
        self._refused: dict[tuple[str, int], tuple[float, int, int]] = {}

    def frame_began(self, now: float) -> None:
        """Record the start of a prefill; the next one is expected a period later."""
        self._last_frame = now

    def euler_plan(self, now: float, deadline: float, batch: int = 1) -> int:
        """Return `steps_before`; for a finite deadline, also call `give_up`."""
        steps = self.steps_before(now, deadline, batch)
        if deadline < math.inf:
            self.give_up(batch)
        return steps

    def steps_before(self, now: float, deadline: float, batch: int = 1) -> int:
        """Return the Euler steps that finish before the deadline, at most `euler_steps`.

        0 if fewer than `min_euler_steps` would; `min_euler_steps` without a measurement; all for
        an infinite deadline.
        """
        if not self.enabled or deadline == math.inf:
            return self.euler_steps
        step = self.latency.estimate('denoise_step', batch)
        left = deadline - self.margin - now
        fewest = self.min_euler_steps
        steps = fewest if step == 0 else int(min(self.euler_steps, max(0.0, left / step)))
        return steps if left > 0 and steps >= fewest else 0

    def candidates(
        self, now: float, deadline: float, steps: int, batch: int, numbers: Sequence[int]
    ) -> int:
        """Return the largest of these ascending numbers of chunks per robot whose steps fit.

        The first number is returned in any case. If the next larger one does not fit, each
        DOUBTED-th call drops its oldest measurement, as a machine may have been slow for a while
        only.
        """
        found, *more = numbers
        for number in more:
            if self.steps_before(now, deadline, number * batch) < steps:
                self._doubts += 1
                if self._doubts % DOUBTED == 0:
                    self.latency.forget_oldest('denoise_step', number * batch)
                break
            found = number
        return found

    def doubt_batch(self, batch: int) -> None:
        """Note a batch of which nothing was tried, because no frame had time left.

        After STARVED in a row, each drops the oldest measurements, as in `give_up`; those of
        prefills, too, because none was tried.
        """
        self.hopeless += 1
        if self.hopeless > STARVED:
            self.latency.forget_oldest('prefill', batch)
            self.latency.forget_oldest('denoise_step', batch)

    def give_up(self, batch: int = 1) -> None:
        """Drop the oldest measurement of an estimate by which no frame could be in time.

        The estimate is only renewed by work, so one frame must be tried again eventually.
        """
        step = self.latency.estimate('denoise_step', batch)
        at_best = self.allowed - self.margin - self.latency.estimate('prefill', batch)
        if self.enabled and 0 < at_best < self.min_euler_steps * step:
            self.latency.forget_oldest('denoise_step', batch)

    def divided(self, kind: str, sizes: Sequence[int]) -> None:
        """Record a piece of divided work; each RETRY-th one lets all sizes be tried again.

        A machine may have been slow for a while only.
        """
        self._pieces += 1
        if self._pieces % RETRY == 0:
            self.latency.forget(kind, sizes)

    @contextmanager
    def at_most(self, steps: int) -> Iterator[None]:
        """Plan at most so many Euler steps within the context; only for the engine thread."""
        whole = self.euler_steps
        self.euler_steps = min(whole, max(self.min_euler_steps, steps))
        try:
            yield
        finally:
            self.euler_steps = whole

    def slack(self, now: float) -> float:
        """Return the time (s) until `margin` before the next prefill; infinite if frames stop."""
        if self.forecast is not None:
            return self.forecast(now) - self.margin
        since = now - self._last_frame
        return math.inf if since > 2 * self.period else self.period - self.margin - since

    def times(self, now: float, kind: str, size: int, most: int) -> int:
        """Return how often work of this kind and size fits the idle time, from 1 to `most`.

        Together they take no longer than `longest`.
        """
        cost = self.latency.estimate(kind, size)
        fits = min(self.slack(now), self.longest) / cost if self.enabled and cost else math.inf
        return max(1, int(min(most, fits)))

    def largest(self, kind: str, sizes: Sequence[int]) -> int:
        """Return the largest of these ascending sizes with which work takes at most `longest`.

        A size that was measured fewer than TRIES times is tried. If no size is fast enough, return
        the largest: dividing such work delays a frame as long and costs more in all.
        """
        for size in reversed(sizes):
            tried = self.latency.count(kind, size) >= TRIES
            if not tried or self.latency.median(kind, size) <= self.longest:
                return size
        return sizes[-1]

    def admits(self, now: float, kind: str, size: int = 1) -> bool:
        """Return whether work of this kind and size fits the idle time.

        The estimate is only renewed by work. So if no work of the kind and size fitted for STARVED
        frames in a row, each further one drops its oldest measurement, until it is tried again. If
        it then still does not fit, the number of frames doubles each time, up to DOUBTS.
        """
        cost = self.latency.estimate(kind, size)
        frame, number, most = self._refused.pop((kind, size), (-math.inf, 0, STARVED))
        if not self.enabled or cost <= self.slack(now):
            if number > most:
                self._refused[kind, size] = self._last_frame, 0, min(2 * most, DOUBTS)
            return True
        if frame != self._last_frame:
            number += 1
            if number > most and not self.latency.forget_oldest_from(kind, size):
                # It was never measured, and smaller sizes are measured again and again.
                self._refused[kind, size] = self._last_frame, 0, min(2 * most, DOUBTS)
                return True
        self._refused[kind, size] = self._last_frame, number, most
        return False
