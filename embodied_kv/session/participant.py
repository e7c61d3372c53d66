"""The channel between the nodes of one robot: requests of the session to them, and notifications.

| method | implemented by | called by, on the thread |
|---|---|---|
| `makes_frames`, `scene` | perception; remote action | `SceneObserver`, its caller's |
| `on_instruction` | action | perception, its own |
| `on_hold` | action | a restore that resumes nothing, the engine's |
| `on_resumed` | language, memory | restore, rollback and fork, the engine's |
| `on_done` | session | each verb of a session, its caller's |

A node joins in `start` and leaves in `stop`, so an inactive node takes no part. The action node
joins in `setup`, because an instruction also counts for an arm that is not controlled yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from embodied_kv.capsule.capsule import Capsule
from embodied_kv.capsule.reentry import Depth, SceneSummary
from embodied_kv.kv.decode_stream import DecodeStream

PATIENCE = 2.0  # s to wait for a frame
POLL = 0.02  # s between two checks for a frame


@dataclass(frozen=True)
class Done:
    """A completed verb: snapshot, restore, rollback or fork, and the depth of what it resumed."""

    verb: str
    capsule: Capsule
    depth: Depth | None = None


class Participant:
    """The role of a node in the session of a robot; a subclass overrides what it takes part in.

    Each method runs on the thread of the caller and must be quick.
    """

    @property
    def makes_frames(self) -> bool:
        """Return whether the node makes frames for a watched robot without an instruction."""
        return False

    def scene(self) -> SceneSummary | None:
        """Return a summary of the present scene; None without a recent observation."""
        return None

    def on_instruction(self, instruction: str) -> None:
        """Put an instruction in force; '' keeps the arm still."""

    def on_hold(self) -> None:
        """Keep the arm where it is: a restore resumed nothing."""

    def on_resumed(self, streams: Sequence[DecodeStream]) -> None:
        """Take over streams that a capsule resumed, before any of them moves on."""

    def on_done(self, done: Done) -> None:
        """Take note of a completed verb."""


class Participants(Participant):
    """All participants of the session of one robot, as one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[Participant, ...] = ()  # immutable: a call may be iterating over it

    def join(self, participant: Participant) -> None:
        """Include a participant from now on, once."""
        with self._lock:
            self._all = (*(other for other in self._all if other is not participant), participant)

    def leave(self, participant: Participant) -> None:
        """Exclude a participant; a call in progress is completed."""
        with self._lock:
            self._all = tuple(other for other in self._all if other is not participant)

    @property
    def makes_frames(self) -> bool:
        return any(each.makes_frames for each in self._all)

    def scene(self) -> SceneSummary | None:
        """Return the scene of the first participant that has one."""
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


class SceneObserver:
    """The present scene, from the participants that make frames. Thread-safe.

    Frames of a robot without an instruction are made only while it is watched.
    """

    def __init__(self, observers: Participant) -> None:
        self._observers, self._watchers, self._lock = observers, 0, threading.Lock()

    @property
    def has_source(self) -> bool:
        """Return whether a participant makes frames, so that waiting for a scene makes sense."""
        return self._observers.makes_frames

    @property
    def is_watched(self) -> bool:
        """Return whether frames are required regardless of an instruction."""
        return self._watchers > 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Require frames inside the block."""
        with self._lock:
            self._watchers += 1
        try:
            yield
        finally:
            with self._lock:
                self._watchers -= 1

    def present_scene(
        self, on_wait: Callable[[], None] = lambda: None, newer: bool = False
    ) -> SceneSummary | None:
        """Return the present scene; wait for it up to PATIENCE if frames are made.

        Args:
            on_wait: Called while waiting; its exceptions end the wait.
            newer: Wait for a scene that is newer than the newest one at the call. After PATIENCE
                the newest one is returned.
        """
        with self.watching():
            newest, until = self._observers.scene, time.monotonic() + PATIENCE
            before = newest() if newer else None
            while (scene := newest()) is None or (before and scene.stamp == before.stamp):
                if not self.has_source or time.monotonic() > until:
                    break
                on_wait()
                time.sleep(POLL)
        return scene
