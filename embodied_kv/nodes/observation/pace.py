"""When a frame is due.

Knows moments, s. Does not know which clock they are of.
"""

from __future__ import annotations

EARLY = 0.25  # of a period that a frame may come before its time, so that cameras may jitter


class Pace:
    """A frame every `period` s in the mean, at moments that cameras choose."""

    def __init__(self, period: float) -> None:
        self.period = period
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """One is due at once."""
        self._due = now

    def is_due(self, now: float) -> bool:
        """Or almost."""
        return now >= self._due - EARLY * self.period

    def gave(self, now: float) -> None:
        """There was one; of periods without any, nothing is made up for."""
        self._due = max(self._due, now - EARLY * self.period) + self.period
