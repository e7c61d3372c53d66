"""The channel between the nodes of one robot: what each does for the session, and is notified of.

Knows frames, streams and capsules by name. Does not know nodes, topics or the session itself.

| method | implemented by | called by, on the thread |
|---|---|---|
| `makes_frames`, `scene` | perception; action of a robot without a model | `Sight`, its caller's |
| `on_instruction` | action | perception, its own |
| `on_hold` | action | a restore that resumes nothing, the engine's |
| `on_resumed` | language | restore, rollback and fork, the engine's |
| `on_done` | session | each verb of a session, its caller's |

A node joins in `start` and leaves in `stop`, so an inactive node takes no part. The action node
joins in `setup`, because an instruction also counts for an arm that is not controlled yet.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from embodied_kv.capsule.capsule import Capsule
from embodied_kv.capsule.reentry import Depth, SceneSummary
from embodied_kv.kv.decode_stream import DecodeStream


@dataclass(frozen=True)
class Done:
    """verb: snapshot, restore, rollback or fork. depth: as deep as it was resumed; else None."""

    verb: str
    capsule: Capsule
    depth: Depth | None = None


class Participant:
    """A node's share of a robot's session; a subclass overrides what it takes part in.

    Each method must be quick: it runs on the thread of the caller.
    """

    @property
    def makes_frames(self) -> bool:
        """Return whether frames are made for a robot without an instruction while it is watched.

        Then it is worth waiting for a `scene`.
        """
        return False

    def scene(self) -> SceneSummary | None:
        """Return what the robot sees and feels now; None without a recent observation."""
        return None

    def on_instruction(self, instruction: str) -> None:
        """Put an instruction in force; '' lets the arm stand."""

    def on_hold(self) -> None:
        """Keep the arm where it is: a restore resumed nothing."""

    def on_resumed(self, streams: Sequence[DecodeStream]) -> None:
        """Take over streams that a capsule resumed, before any of them moves on."""

    def on_done(self, done: Done) -> None:
        """Take note of a verb that was done."""


class Participants(Participant):
    """All participants of one robot's session, as one. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[
            Participant, ...
        ] = ()  # replaced, never changed: a call may be reading it

    def join(self, participant: Participant) -> None:
        """Call it from now on, once for each event."""
        with self._lock:
            self._all = (*(other for other in self._all if other is not participant), participant)

    def leave(self, participant: Participant) -> None:
        """Call it no longer; a call that is in progress goes on."""
        with self._lock:
            self._all = tuple(other for other in self._all if other is not participant)

    @property
    def makes_frames(self) -> bool:
        """Return whether one of them makes frames."""
        return any(each.makes_frames for each in self._all)

    def scene(self) -> SceneSummary | None:
        """Return the scene of the first one that has one."""
        scenes = (each.scene() for each in self._all)
        return next((scene for scene in scenes if scene is not None), None)

    def on_instruction(self, instruction: str) -> None:
        for each in self._all:
            each.on_instruction(instruction)

    def on_hold(self) -> None:
        for each in self._all:
            each.on_hold()

    def on_resumed(self, streams: Sequence[DecodeStream]) -> None:
        for each in self._all:
            each.on_resumed(streams)

    def on_done(self, done: Done) -> None:
        for each in self._all:
            each.on_done(done)
