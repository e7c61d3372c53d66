"""The recording of a run for the film: true states, decisions and sentences.

Stamps are in ns on the ROS clock. Only numbers and the small images of the policy are stored, to
keep the load on the measured run low; the film is rendered afterwards.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from embodied_kv.demo.nodes.truth import TrueMoment


@dataclass(frozen=True, eq=False)
class Decision:
    """A frame and its fresh chunk.

    stamp, ready: ns, of the frame and of the command. seen: uint8 [height, width, 3] by camera,
    the input of the policy. joints: float64 [7] in the frame. actions: float64 [chunk, 7], the
    i-th due at stamp + i * dt; those before `first` were late.
    """

    stamp: int
    ready: int
    seen: dict[str, np.ndarray]
    joints: np.ndarray
    actions: np.ndarray
    first: int
    dt: float
    note: str

    def path(self, joints: np.ndarray, at: int) -> np.ndarray:
        """Return the joints and the actions that remain at a time (ns): float64 [n, 7]."""
        passed = int(np.ceil((at - self.stamp) / 1e9 / self.dt))
        return np.vstack([joints, self.actions[max(self.first, passed) :]])


@dataclass(frozen=True)
class Sentence:
    """A complete text. received: ns, of its end. query: the question."""

    received: int
    query: str
    text: str


class Recording:
    """Records `longest` s from the first moment and after each `go_on`, in order of time."""

    def __init__(self, longest: float) -> None:
        self._longest, self._until = longest * 1e9, 0.0  # ns
        self.moments: list[TrueMoment] = []
        self.decisions: list[Decision] = []
        self.sentences: list[Sentence] = []

    def add_moment(self, moment: TrueMoment) -> None:
        if not self.moments:
            self.go_on(moment.stamp)
        if moment.stamp <= self._until:
            self.moments.append(moment)

    def go_on(self, stamp: int) -> None:
        """Record the next `longest` s."""
        self._until = stamp + self._longest

    def stop(self, stamp: int) -> None:
        """End the recording at this stamp."""
        self._until = min(self._until, stamp)

    def decide(self, decision: Decision) -> None:
        if self._is_running(decision.ready):
            self.decisions.append(decision)

    def add_text(self, sentence: Sentence) -> None:
        if self._is_running(sentence.received):
            self.sentences.append(sentence)

    def _is_running(self, at: int) -> bool:
        return at <= self._until

    def moment(self, at: int) -> TrueMoment | None:
        """Return the last moment until a time (ns)."""
        before = bisect_right(self.moments, at, key=lambda moment: moment.stamp)
        return self.moments[before - 1] if before else None

    def decision(self, at: int) -> Decision | None:
        """Return the last chunk that was ready at a time (ns), if it is of the same scene."""
        before = bisect_right(self.decisions, at, key=lambda decision: decision.ready)
        decision = self.decisions[before - 1] if before else None
        then, now = decision and self.moment(decision.stamp), self.moment(at)
        return decision if then and now and then.scene == now.scene else None

    def said(self, at: int, since: int = 0) -> dict[str, str]:
        """Return the last text of each query from `since` to `at` (ns), the newest last."""
        newest: dict[str, str] = {}
        for sentence in self.sentences:
            if since <= sentence.received <= at:
                newest.pop(sentence.query, None)
                newest[sentence.query] = sentence.text
        return newest
