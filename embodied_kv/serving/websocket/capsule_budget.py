"""One budget for the capsules of all sessions: those used least recently give way, whose they are.

Knows registries and bytes. Does not know clients. What a session may keep by itself, its own
registry bounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.kv.plane import OverBudget

MIB = 2**20


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
        """While it is taken. Raises OverBudget."""
        if size > self._most:
            raise OverBudget(
                f'a capsule of {size / MIB:.1f} MiB: those of all sessions together may take '
                f'{self._most / MIB:g} MiB'
            )
        with self._lock:
            own = registry.used(Tier.DEVICE) + size - registry.capacities.of(Tier.DEVICE)
            while self._used() + size - max(0, own) > self._most:
                self._give_up()
            yield

    def _used(self) -> int:
        return sum(registry.used(Tier.DEVICE) for registry in self._registries.values())

    def _give_up(self) -> None:
        kept = [
            (registry.idle(record.name), session, record.name)
            for session, registry in self._registries.items()
            for record in registry.entries()
        ]
        _, session, name = max(kept)
        self._registries[session].drop(name)
        self.given_up += 1
        self._say(
            f'capsule {name} of session {session} gives way: those of all sessions together may '
            f'take {self._most / MIB:g} MiB'
        )
