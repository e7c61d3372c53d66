"""What was promised, and what came of it.

Knows futures, numbers of streams, and outcomes by name. Does not know what was done. All of it
may be called from any thread.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Condition

from embodied_kv.types import TextDelta

DONE, REFUSED, INJECTED = 'done', 'refused', 'injected'
EVIDENCE = 20  # broken laws that are reported


class Ledger:
    """outcomes: counts of DONE, REFUSED, INJECTED by operation. broken: law -> first evidence.

    costs: s of operations that were done, by (part, operation); part: of the run, which whoever
    runs sets, None to measure nothing.
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
        self._settled = 0  # the greatest number of a stream that ended before that
        self._heard = 0

    # ------------------------------------------------------------------ operations

    def outcome(self, operation: str, outcome: str, seconds: float) -> None:
        with self._changed:
            self.outcomes[operation][outcome] += 1
            if outcome == DONE and self.part is not None:
                self.costs[self.part, operation].append(seconds)

    def breaks(self, law: str, evidence: object) -> None:
        """A law is broken; the first evidence stays."""
        with self._changed:
            if len(self.broken) < EVIDENCE:
                self.broken.setdefault(law, str(evidence))

    # ------------------------------------------------------------------ futures

    def promise(self, future: Future) -> Future:
        """The same future; it has to be answered before `unanswered` is called."""
        with self._changed:
            self._promises.add(future)
        future.add_done_callback(self._answered)
        return future

    def _answered(self, future: Future) -> None:
        with self._changed:
            self._promises.discard(future)
            self._changed.notify_all()

    def unanswered(self, patience: float) -> int:
        """Futures that are not answered after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._promises, patience)
            return len(self._promises)

    # ------------------------------------------------------------------ streams

    def opened(self, *streams: int) -> None:
        """They live, and will say when they end."""
        with self._changed:
            self._open.update(streams)

    def hear(self, deltas: Sequence[TextDelta]) -> None:
        """What streams say. After its end a stream says nothing, its opening failed or not."""
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
        """Waits until language was heard so often, or so many seconds."""
        with self._changed:
            until = self._heard + turns
            self._changed.wait_for(lambda: self._heard >= until, patience)

    def unended(self, patience: float) -> list[int]:
        """Streams that have not said after so many seconds that they ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._open <= self._ended, patience)
            return sorted(self._open - self._ended)

    def settle(self) -> None:
        """All streams have ended: which ones need not be remembered, but for the last."""
        with self._changed:
            self._settled = max({self._settled, *self._ended, *self._open})
            self._open.clear()
            self._ended.clear()
