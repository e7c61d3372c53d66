"""One memory budget for the capsules of all sessions, divided by tenant.

A capsule is evicted only for capsules of its own tenant, least recently used first. The registry
of each session bounds that session.

Locking order: the KV budget is claimed before `_lock` is taken. The KV budget holds its own lock
while capsules move, and reads byte counts at any moment, so these are returned without `_lock`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import cast

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.copies import CapsuleRecord
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.kv.budget import KvBudget, OverBudgetError, OwnEviction
from embodied_kv.kv.pool import Evictable
from embodied_kv.serving.websocket.config import MIB

_Oldest = tuple[float, str, CapsuleRecord]  # idle seconds, session, record


class CapsuleBudget:
    """The budget, which is a pool of the KV budget from `join` to `leave`. Thread-safe.

    No other pool evicts a capsule, because it exists nowhere else. For a new capsule, all other
    pools evict before older capsules of its tenant are evicted. `given_up` counts capsules evicted
    for those of other sessions.

    Args:
        most: Bytes of all capsules; each tenant has an equal part.
        say: Receives a log line for each evicted capsule.
        kv_budget: The KV budget of the device.
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
        self._kv_budget.join(self)

    def leave(self) -> None:
        self._kv_budget.leave(self)

    def share(self, registry: Registry, session: str, tenant: str = '') -> None:
        """Bound the registry of a session by the part of its tenant."""
        with self._lock:
            self._registries = {**self._registries, session: registry}
            self._tenants = {**self._tenants, session: tenant}
        registry.room = lambda size, cost: self._room(registry, session, size, cost)

    def divide(self, tenants: int) -> None:
        """Divide the budget by the number of tenants, and evict what exceeds a part."""
        with self._lock:
            self._parts = max(1, tenants)
            for tenant in set(self._tenants.values()):
                while self.bytes_of(tenant) > self._part:
                    self._give_up(self._of(tenant), None)

    def bytes_of(self, tenant: str) -> int:
        return sum(registry.used(Tier.DEVICE) for registry in self._of(tenant).values())

    def forget(self, session: str) -> None:
        """Drop the capsules of a session that ended for good."""
        with self._lock:
            if (registry := self._registries.get(session)) is not None:
                for record in registry.entries():
                    with suppress(CapsuleError):  # it was evicted just now
                        registry.drop(record.name)
            left = {name: r for name, r in self._registries.items() if name != session}
            self._registries = left
            self._tenants = {s: t for s, t in self._tenants.items() if s != session}

    @contextmanager
    def _room(self, registry: Registry, session: str, size: int, cost: float) -> Iterator[None]:
        """Reserve room for a capsule. Raises OverBudgetError before anything is evicted."""
        tenant = self._tenants.get(session, '')
        if size > self._part:
            raise OverBudgetError(
                f'capsules of {self._owners} must be at most {self._part / MIB:g} MiB (got one of '
                f'{size / MIB:.1f} MiB)'
            )
        older = partial(self._own, registry, session, size)
        with self._kv_budget.claim(self, size, cost, wait=True, own=older), self._lock:
            while self.bytes_of(tenant) - self._gives(registry, size) + size > self._part:
                self._give_up(self._of(tenant), registry)
            yield

    def _own(
        self, registry: Registry, session: str, size: int, lacking: float
    ) -> OwnEviction | None:
        """Return what older capsules of the tenant can free of the KV budget for a new one.

        They cannot be computed again, so that all other pools evict before them.
        """
        tenant = self._tenants.get(session, '')
        oldest = self._oldest(self._of(tenant))
        if oldest is None:
            return None
        most = min(self.bytes_of(tenant), math.ceil(lacking))
        return OwnEviction(most, math.inf, oldest[0], partial(self._give, registry, session, size))

    def _give(self, registry: Registry, session: str, size: int, share: int) -> int:
        """Evict capsules for at least `share` bytes, first those that the session loses anyway."""
        freed = 0
        with self._lock:
            kept = self._of(self._tenants.get(session, ''))
            while freed < share and self._oldest(kept):
                first = {session: registry} if self._gives(registry, size) else kept
                freed += self._give_up(first, registry, 'engine.kv_budget_mib is full')
        return freed

    @property
    def _part(self) -> float:
        return self._most / self._parts

    @property
    def _owners(self) -> str:
        return 'all sessions together' if self._parts == 1 else 'all sessions of a key'

    def _of(self, tenant: str) -> dict[str, Registry]:
        tenants = self._tenants
        return {s: r for s, r in self._registries.items() if tenants.get(s) == tenant}

    @staticmethod
    def _gives(registry: Registry, size: int) -> float:
        """Return the bytes that the session's own bound evicts for a capsule of `size`."""
        return max(0, registry.used(Tier.DEVICE) + size - registry.capacities.of(Tier.DEVICE))

    @staticmethod
    def _oldest(registries: Mapping[str, Registry]) -> _Oldest | None:
        """Return the least recently used capsule; None if there is none."""
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
        """Evict the least recently used capsule of these for `newcomer`; return its bytes."""
        _, session, record = cast(_Oldest, self._oldest(registries))
        registries[session].drop(record.name)
        self.given_up += registries[session] is not newcomer
        why = why or f'the limit of {self._owners} is {self._part / MIB:g} MiB'
        self._say(f'capsule {record.name} of session {session} was evicted: {why}')
        return record.bytes

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
        """Return nothing: an evicted capsule is lost, so that only its tenant evicts it."""
        return []

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of a session, or of all, is violated."""
        with self._lock:
            for registry in self._registries.values():
                registry.check_integrity()
            assert self.bytes <= self._most, f'{self.bytes} of {self._most} bytes of capsules'
