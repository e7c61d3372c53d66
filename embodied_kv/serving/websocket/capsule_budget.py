"""One budget for the capsules of all sessions, divided by tenant.

A capsule gives way to those of its own tenant alone, the one used least recently first.

Knows registries, bytes, and the KV budget of which it is a pool. Does not know clients. What a
session may keep by itself, its own registry bounds.

Locks: the KV budget is asked before `_lock` is taken, which is held while capsules move, and asks
for bytes at any moment, so these are told without it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.record import CapsuleRecord
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.kv.budget import KvBudget, OverBudget, OwnEviction
from embodied_kv.kv.pool import Evictable
from embodied_kv.serving.websocket.config import MIB


class CapsuleBudget:
    """most: bytes of all capsules together, of which each tenant has the same part.

    say: told of each that gives way, in a sentence.
    kv_budget: where it is a pool from `join` to `leave`. Nothing else there takes the place of a
    capsule, which nobody has beside; older ones of its tenant give way to a new one, last of all.
    given_up: capsules that gave way to those of other sessions. From any thread.
    """

    name = 'capsules'

    def __init__(
        self, most: float, say: Callable[[str], object], kv_budget: KvBudget | None = None
    ) -> None:
        self._most, self._say, self._kv_budget = most, say, kv_budget or KvBudget()
        self._lock = threading.Lock()
        self._registries: dict[str, Registry] = {}  # by session; replaced, never changed
        self._tenants: dict[str, str] = {}  # by session, replaced too
        self._parts = 1
        self.given_up = 0

    def join(self) -> None:
        """From now on its bytes are the KV budget's."""
        self._kv_budget.join(self)

    def leave(self) -> None:
        """They are not any more."""
        self._kv_budget.leave(self)

    def share(self, registry: Registry, session: str, tenant: str = '') -> None:
        """From now on it takes no capsule that has no room in the part of its tenant."""
        with self._lock:
            self._registries = {**self._registries, session: registry}
            self._tenants = {**self._tenants, session: tenant}
        registry.room = lambda size, cost: self._room(registry, session, size, cost)

    def divide(self, tenants: int) -> None:
        """So many tenants share it from now on; those with more than their part give it up."""
        with self._lock:
            self._parts = max(1, tenants)
            for tenant in set(self._tenants.values()):
                while self.bytes_of(tenant) > self._part:
                    self._give_up(self._of(tenant), None)

    def bytes_of(self, tenant: str) -> int:
        """Return the bytes of the capsules of that tenant."""
        return sum(registry.used(Tier.DEVICE) for registry in self._of(tenant).values())

    def forget(self, session: str) -> None:
        """Nobody comes back to it: its capsules are gone."""
        with self._lock:
            registry = self._registries.get(session)
            for record in registry.entries() if registry is not None else ():
                with suppress(CapsuleError):  # it gave way just now
                    registry.drop(record.name)
            left = {name: r for name, r in self._registries.items() if name != session}
            self._registries = left
            self._tenants = {s: t for s, t in self._tenants.items() if s != session}

    @contextmanager
    def _room(self, registry: Registry, session: str, size: int, cost: float) -> Iterator[None]:
        """While it is taken. Raises OverBudget, before anything gives way."""
        tenant = self._tenants.get(session, '')
        if size > self._part:
            raise OverBudget(
                f'a capsule of {size / MIB:.1f} MiB: those of {self._whose} may take '
                f'{self._part / MIB:g} MiB'
            )
        older = partial(self._own, registry, session, size)
        with self._kv_budget.claim(self, size, cost, wait=True, own=older), self._lock:
            while self.bytes_of(tenant) - self._gives(registry, size) + size > self._part:
                self._give_up(self._of(tenant), registry)
            yield

    def _own(
        self, registry: Registry, session: str, size: int, lacking: float
    ) -> OwnEviction | None:
        """Return what older capsules of the tenant give up for a new one of `size`.

        They cannot be made again, so all that can goes before them. registry: of the session that
        the new one is for.
        """
        tenant = self._tenants.get(session, '')
        oldest = self._oldest(self._of(tenant))
        if oldest is None:
            return None
        most = min(self.bytes_of(tenant), math.ceil(lacking))
        return OwnEviction(most, math.inf, oldest[0], partial(self._give, registry, session, size))

    def _give(self, registry: Registry, session: str, size: int, share: int) -> int:
        """Drop capsules for at least `share` bytes; return the bytes freed.

        What the bound of the session costs it in any case goes first.
        """
        freed = 0
        with self._lock:
            kept = self._of(self._tenants.get(session, ''))
            while freed < share and self._oldest(kept):
                first = {session: registry} if self._gives(registry, size) else kept
                freed += self._give_up(first, registry, 'engine.kv_budget_mib is full')
        return freed

    @property
    def _part(self) -> float:
        """Bytes of each tenant."""
        return self._most / self._parts

    @property
    def _whose(self) -> str:
        return 'all sessions together' if self._parts == 1 else 'all sessions of a key'

    def _of(self, tenant: str) -> dict[str, Registry]:
        tenants = self._tenants
        return {s: r for s, r in self._registries.items() if tenants.get(s) == tenant}

    @staticmethod
    def _gives(registry: Registry, size: int) -> float:
        """Bytes, at least, that it gives up of its own for a capsule of that size."""
        return max(0, registry.used(Tier.DEVICE) + size - registry.capacities.of(Tier.DEVICE))

    @staticmethod
    def _oldest(registries: Mapping[str, Registry]) -> tuple[float, str, CapsuleRecord] | None:
        """Return the capsule that was used least recently: s since then, session, record."""
        now = time.monotonic()
        kept = [
            (registry.idle(record.name, now), session, record)
            for session, registry in registries.items()
            for record in registry.entries()
        ]
        return max(kept, key=lambda one: (one[0], one[1], one[2].name), default=None)

    def _give_up(
        self, registries: Mapping[str, Registry], newcomer: Registry | None, why: str = ''
    ) -> int:
        """Drop the capsule of these that was used least recently; return the bytes freed.

        newcomer: that it is dropped for. why: '' for the part of the tenant.
        """
        _, session, record = self._oldest(registries)
        registries[session].drop(record.name)
        self.given_up += registries[session] is not newcomer
        why = why or f'those of {self._whose} may take {self._part / MIB:g} MiB'
        self._say(f'capsule {record.name} of session {session} gives way: {why}')
        return record.bytes

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
