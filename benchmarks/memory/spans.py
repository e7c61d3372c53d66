"""Loads and computation of a prefill over time, for pipelines as in figure 8 of KEEP."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.memory.load_policies import SEPARATE
from embodied_kv.memory.loader import Loader, LoadQueue
from embodied_kv.runtime.stream import Event, Stream

LOAD, COMPUTE = 'load', 'compute'


@dataclass(frozen=True)
class Span:
    """Work on one layer, from `start` to `end` (s); `unit` is the unit that was loaded."""

    lane: str
    layer: int
    start: float
    end: float
    unit: str = ''


@dataclass(frozen=True)
class Timeline:
    """Spans in the order in which they began, the first time being 0."""

    spans: tuple[Span, ...]

    @classmethod
    def of(cls, spans: Iterable[Span], origin: float = 0.0) -> Timeline:
        """Return the timeline of spans whose times count from `origin`."""
        moved = (
            Span(s.lane, s.layer, s.start - origin, s.end - origin, s.unit)
            for s in sorted(spans, key=lambda s: (s.start, s.end))
        )
        return cls(tuple(moved))

    @property
    def end(self) -> float:
        return max((span.end for span in self.spans), default=0.0)

    def lane(self, lane: str) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.lane == lane)

    def busy(self, lane: str) -> float:
        """Return the seconds in which a lane worked."""
        return sum(span.end - span.start for span in self.lane(lane))

    def bubbles(self, lane: str) -> tuple[tuple[float, float], ...]:
        """Return when a lane waited, as (start, end), from 0 to the end of all work."""
        found, free = [], 0.0
        for span in self.lane(lane):
            if span.start > free:
                found.append((free, span.start))
            free = max(free, span.end)
        return (*found, (free, self.end)) if self.end > free else tuple(found)


class TimedLoader(Loader):
    """A loader that records its spans. On a GPU a load ends when the device has completed it."""

    def __init__(
        self, pending: LoadQueue, load: Callable[[str, int], None], *rest: object, **more: object
    ) -> None:
        self._spans: list[Span] = []
        self._started: deque[tuple[int, str, float]] = deque()

        def timed(unit: str, layer: int) -> None:
            self._started.append((layer, unit, time.perf_counter()))
            load(unit, layer)

        super().__init__(pending, timed, *rest, **more)

    def __enter__(self) -> TimedLoader:
        self._origin = time.perf_counter()
        super().__enter__()
        return self

    @contextmanager
    def computing(self, layer: int) -> Iterator[None]:
        with super().computing(layer):
            start = time.perf_counter()
            yield
            if getattr(self._pending, 'policy', '') == SEPARATE:
                Stream.current(self._device).synchronize()
        self._spans.append(Span(COMPUTE, layer, start, time.perf_counter()))

    def _complete(self, issued: deque[Event]) -> None:
        super()._complete(issued)
        layer, unit, start = self._started.popleft()
        self._spans.append(Span(LOAD, layer, start, time.perf_counter(), unit))

    @property
    def timeline(self) -> Timeline:
        """Return the spans since the start of the context."""
        return Timeline.of(self._spans, self._origin)
