"""One budget for the capsules of all sessions: those used least recently give way, whose they are.

Knows registries, bytes, and the plane of which it is a pool. Does not know clients. What a session
may keep by itself, its own registry bounds.

Locks: the plane is asked before `_lock` is taken, which is held while capsules move, and asks for
bytes at any moment, so these are told without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.kv.plane import OverBudget, Plane
from embodied_kv.kv.pool import Evictable
from embodied_kv.serving.websocket.config import MIB


class CapsuleBudget:
    """most: bytes of all capsules together. say: told of each that gives way, in a sentence.

    plane: where it is a pool from `join` to `leave`. Nothing else there takes the place of a
    capsule, which nobody has beside. given_up: capsules that gave way to those of other sessions.
    From any thread.
    """

    name = 'capsules'

    def __init__(
        self, most: float, say: Callable[[str], object], plane: Plane | None = None
    ) -> None:
        self._most, self._say, self._plane = most, say, plane or Plane()
        self._lock = threading.Lock()
        self._registries: dict[str, Registry] = {}  # by session; replaced, never changed
        self.given_up = 0

    def join(self) -> None:
        """From now on its bytes are the plane's."""
        self._plane.join(self)

    def leave(self) -> None:
        """They are not any more."""
        self._plane.leave(self)

    def share(self, registry: Registry, session: str) -> None:
        """From now on it takes no capsule that has no room here."""
        with self._lock:
            self._registries = {**self._registries, session: registry}
        registry.room = lambda size, cost: self._room(registry, size, cost)

    def forget(self, session: str) -> None:
        """Nobody comes back to it: its capsules are gone."""
        with self._lock:
            registry = self._registries.get(session)
            for record in registry.entries() if registry is not None else ():
                with suppress(CapsuleError):  # it gave way just now
                    registry.drop(record.name)
            left = {name: r for name, r in self._registries.items() if name != session}
            self._registries = left

    @contextmanager
    def _room(self, registry: Registry, size: int, cost: float) -> Iterator[None]:
        """While it is taken. Raises OverBudget, before anything gives way."""
        own = registry.capacities.of(Tier.DEVICE)
        for most, whose in ((self._most, 'all sessions together'), (own, 'a session')):
            if size > most:
                raise OverBudget(
                    f'a capsule of {size / MIB:.1f} MiB: those of {whose} may take '
                    f'{most / MIB:g} MiB'
                )
        with self._plane.claim(self, size, cost, wait=True), self._lock:
            while self.bytes - self._gives(registry, size) + size > self._most:
                self._give_up(registry)
            yield

    @staticmethod
    def _gives(registry: Registry, size: int) -> float:
        """Bytes, at least, that it gives up of its own for a capsule of that size."""
        return max(0, registry.used(Tier.DEVICE) + size - registry.capacities.of(Tier.DEVICE))

    def _give_up(self, newcomer: Registry) -> None:
        """The one that was used least recently, for a capsule of the newcomer's."""
        now = time.monotonic()
        kept = [
            (registry.idle(record.name, now), session, record.name)
            for session, registry in self._registries.items()
            for record in registry.entries()
        ]
        _, session, name = max(kept)
        registry = self._registries[session]
        registry.drop(name)
        self.given_up += registry is not newcomer
        self._say(
            f'capsule {name} of session {session} gives way: those of all sessions together may '
            f'take {self._most / MIB:g} MiB'
        )

    # ------------------------------------------------------------------ as a pool

    @property
    def bytes(self) -> int:
        return sum(registry.used(Tier.DEVICE) for registry in self._registries.values())

    @property
    def bytes_used(self) -> int:
        return self.bytes

    @property
    def bytes_reserved(self) -> int:
        return self.bytes

    def evictable(self) -> list[Evictable]:
        """None: what goes here is lost, and that is for sessions to decide among themselves."""
        return []

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law, of each session and of all together."""
        with self._lock:
            for registry in self._registries.values():
                registry.check_integrity()
            assert self.bytes <= self._most, f'{self.bytes} of {self._most} bytes of capsules'
