"""The futures and streams that must end, and the outcomes of the operations.

Knows futures, numbers of streams, and outcomes by name. Does not know the operations. Any thread
may call all of it.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Condition

from embodied_kv.types import TextDelta

DONE, REFUSED, INJECTED = 'done', 'refused', 'injected'
EVIDENCE = 20  # maximum number of broken invariants that are reported


class Ledger:
    """Records outcomes, futures and streams.

    outcomes: counts of DONE, REFUSED, INJECTED by operation. broken: invariant -> first evidence.
    costs: s of operations that were done, by (part, operation). part: the current part of the run,
    set by the caller; None to measure nothing.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.broken: dict[str, str] = {}
        self.costs: dict[tuple[str, str], array] = defaultdict(lambda: array('d'))
        self.part: str | None = None
        self._changed = Condition()
        self._promises: set[Future] = set()
        self._open: set[int] = set()  # streams since `settle`
        self._ended: set[int] = set()
        self._settled = 0  # the greatest stream number at the last `settle`
        self._heard = 0

    # ------------------------------------------------------------------ operations

    def outcome(self, operation: str, outcome: str, seconds: float) -> None:
        with self._changed:
            self.outcomes[operation][outcome] += 1
            if outcome == DONE and self.part is not None:
                self.costs[self.part, operation].append(seconds)

    def breaks(self, law: str, evidence: object) -> None:
        """Record that an invariant is broken; the first evidence is kept."""
        with self._changed:
            if len(self.broken) < EVIDENCE:
                self.broken.setdefault(law, str(evidence))

    # ------------------------------------------------------------------ futures

    def promise(self, future: Future) -> Future:
        """Register a future that must be answered before `unanswered` is called, and return it."""
        with self._changed:
            self._promises.add(future)
        future.add_done_callback(self._answered)
        return future

    def _answered(self, future: Future) -> None:
        with self._changed:
            self._promises.discard(future)
            self._changed.notify_all()

    def unanswered(self, patience: float) -> int:
        """Return the number of futures that are not answered after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._promises, patience)
            return len(self._promises)

    # ------------------------------------------------------------------ streams

    def opened(self, *streams: int) -> None:
        """Register streams, whose end must be reported."""
        with self._changed:
            self._open.update(streams)

    def hear(self, deltas: Sequence[TextDelta]) -> None:
        """Record text deltas, of which a stream must have none after its end.

        This also holds for a stream whose opening failed.
        """
        with self._changed:
            self._heard += 1
            for delta in deltas:
                if delta.stream in self._ended or delta.stream <= self._settled:
                    again = f'{delta.stream} spoke after its end: {delta}'
                    self.breaks('a stream ends once', again)
                if delta.finished:
                    self._ended.add(delta.stream)
            self._changed.notify_all()

    def listen(self, turns: int, patience: float) -> None:
        """Wait until deltas were reported `turns` times, for at most so many seconds."""
        with self._changed:
            until = self._heard + turns
            self._changed.wait_for(lambda: self._heard >= until, patience)

    def unended(self, patience: float) -> list[int]:
        """Return the streams whose end was not reported after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._open <= self._ended, patience)
            return sorted(self._open - self._ended)

    def settle(self) -> None:
        """Forget all streams, which have ended; only the greatest number is kept."""
        with self._changed:
            self._settled = max({self._settled, *self._ended, *self._open})
            self._open.clear()
            self._ended.clear()
