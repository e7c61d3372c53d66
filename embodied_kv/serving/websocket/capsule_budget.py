"""One budget for the capsules of all sessions: those used least recently give way, whose they are.

Knows registries and bytes. Does not know clients. What a session may keep by itself, its own
registry bounds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.kv.plane import OverBudget
from embodied_kv.serving.websocket.config import MIB


class CapsuleBudget:
    """most: bytes of all capsules together. say: told of each that gives way, in a sentence.

    From any thread.
    """

    def __init__(self, most: float, say: Callable[[str], object]) -> None:
        self._most, self._say = most, say
        self._lock = threading.Lock()
        self._registries: dict[str, Registry] = {}  # by session
        self.given_up = 0  # capsules that gave way to those of other sessions

    def share(self, registry: Registry, session: str) -> None:
        """From now on it takes no capsule that has no room here."""
        with self._lock:
            self._registries[session] = registry
        registry.room = lambda size, cost: self._room(registry, size)

    def forget(self, session: str) -> None:
        """Nobody comes back to it: its capsules are gone."""
        with self._lock:
            registry = self._registries.pop(session, None)
            for record in registry.entries() if registry is not None else ():
                with suppress(CapsuleError):  # it gave way just now
                    registry.drop(record.name)

    def used(self) -> int:
        """Bytes."""
        with self._lock:
            return self._used()

    @contextmanager
    def _room(self, registry: Registry, size: int) -> Iterator[None]:
        """While it is taken. Raises OverBudget, before anything gives way."""
        own = registry.capacities.of(Tier.DEVICE)
        for most, whose in ((self._most, 'all sessions together'), (own, 'a session')):
            if size > most:
                raise OverBudget(
                    f'a capsule of {size / MIB:.1f} MiB: those of {whose} may take '
                    f'{most / MIB:g} MiB'
                )
        with self._lock:
            while self._used() - self._gives(registry, size) + size > self._most:
                self._give_up(registry)
            yield

    @staticmethod
    def _gives(registry: Registry, size: int) -> float:
        """Bytes, at least, that it gives up of its own for a capsule of that size."""
        return max(0, registry.used(Tier.DEVICE) + size - registry.capacities.of(Tier.DEVICE))

    def _used(self) -> int:
        return sum(registry.used(Tier.DEVICE) for registry in self._registries.values())

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
