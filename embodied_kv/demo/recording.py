"""What a run of the demo leaves behind to be drawn after it: moments, decisions and sentences.

Knows what was when, in ns on the ROS clock. Does not know topics, pictures of people's size or who
draws them. A few numbers and the policy's own small images: the measured run pays for no more.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from embodied_kv.demo.nodes.truth import TrueMoment


@dataclass(frozen=True, eq=False)
class Decision:
    """A frame and the fresh chunk that it led to.

    stamp, ready: ns, of the frame and of the chunk's command. seen: uint8 [height, width, 3] by
    camera, the very images that the policy got. joints: float64 [7] in the frame. actions: float64
    [chunk, 7], the i-th due at stamp + i * dt; before `first` their moments had passed at once.
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
        """From these joints on, the actions that are still to come at that ns: float64 [n, 7]."""
        passed = int(np.ceil((at - self.stamp) / 1e9 / self.dt))
        return np.vstack([joints, self.actions[max(self.first, passed) :]])


@dataclass(frozen=True)
class Sentence:
    """heard: ns, when it was whole. query: what it answers."""

    heard: int
    query: str
    text: str


class Recording:
    """The first `longest` s of a run, and as much from `go_on` on. Each list grows by time."""

    def __init__(self, longest: float) -> None:
        self._longest, self._until = longest * 1e9, 0.0  # ns
        self.moments: list[TrueMoment] = []
        self.decisions: list[Decision] = []
        self.sentences: list[Sentence] = []

    def see(self, moment: TrueMoment) -> None:
        """Takes the next moment."""
        if not self.moments:
            self.go_on(moment.stamp)
        if moment.stamp <= self._until:
            self.moments.append(moment)

    def go_on(self, stamp: int) -> None:
        """What comes in the next `longest` s is kept."""
        self._until = stamp + self._longest

    def stop(self, stamp: int) -> None:
        """What comes later is not kept."""
        self._until = min(self._until, stamp)

    def decide(self, decision: Decision) -> None:
        """Takes the next decision."""
        if self._is_running(decision.ready):
            self.decisions.append(decision)

    def hear(self, sentence: Sentence) -> None:
        """Takes the next sentence."""
        if self._is_running(sentence.heard):
            self.sentences.append(sentence)

    def _is_running(self, at: int) -> bool:
        return at <= self._until

    # ------------------------------------------------------------------ what was, at that ns

    def moment(self, at: int) -> TrueMoment | None:
        """The last moment until then."""
        before = bisect_right(self.moments, at, key=lambda moment: moment.stamp)
        return self.moments[before - 1] if before else None

    def decision(self, at: int) -> Decision | None:
        """The last chunk that was ready until then, if it is about the scene of then."""
        before = bisect_right(self.decisions, at, key=lambda decision: decision.ready)
        decision = self.decisions[before - 1] if before else None
        then, now = decision and self.moment(decision.stamp), self.moment(at)
        return decision if then and now and then.scene == now.scene else None

    def said(self, at: int, since: int = 0) -> dict[str, str]:
        """Query -> what was heard last until then, and since; the newest comes last."""
        newest: dict[str, str] = {}
        for sentence in self.sentences:
            if since <= sentence.heard <= at:
                newest.pop(sentence.query, None)
                newest[sentence.query] = sentence.text
        return newest
