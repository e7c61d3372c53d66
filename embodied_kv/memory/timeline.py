"""What was loaded and computed when, for drawing pipelines and their bubbles.

Knows spans of time. Does not know what a load or a layer is.

Source: KEEP, figure 8.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LOAD, COMPUTE = 'load', 'compute'


@dataclass(frozen=True)
class Span:
    """Work of one lane on one layer, from start to end in seconds. unit: that was loaded."""

    lane: str
    layer: int
    start: float
    end: float
    unit: str = ''


@dataclass(frozen=True)
class Timeline:
    """Spans in the order in which they began, from 0 on. end: when the last work was done."""

    spans: tuple[Span, ...]

    @classmethod
    def of(cls, spans: Iterable[Span], origin: float = 0.0) -> Timeline:
        """origin: the moment that becomes 0."""
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
        """Seconds in which it worked."""
        return sum(span.end - span.start for span in self.lane(lane))

    def bubbles(self, lane: str) -> tuple[tuple[float, float], ...]:
        """When it waited, as (start, end), from 0 to the end of all work."""
        found, free = [], 0.0
        for span in self.lane(lane):
            if span.start > free:
                found.append((free, span.start))
            free = max(free, span.end)
        return (*found, (free, self.end)) if self.end > free else tuple(found)
