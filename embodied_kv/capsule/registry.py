"""The capsules of a process by name: the tiers that store each, pins, and the shared budget.

A capsule never changes, so each copy of it stays valid. A capsule that was saved stays on the disk
when it is used again: a rollback writes nothing, and a crash loses nothing.

Threads: any method may be called from any thread. `_changing` serializes the movement of bytes;
`_lock` guards the table and is held for a lookup only. So `get` from memory, `entries` and `used`
never wait for a copy or a file, and a capsule that `get` has returned stays valid whatever happens
to its name. The other methods may wait for a file: call them from a thread without a deadline.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from embodied_kv.capsule.capsule import Capsule, CapsuleError
from embodied_kv.capsule.copies import CapsuleCopy, CapsuleRecord, TierCopier
from embodied_kv.capsule.disk import Disk, check_name
from embodied_kv.capsule.fingerprint import mismatch
from embodied_kv.capsule.tiers import (
    Move,
    NoRoomError,
    Policy,
    Tier,
    TierCapacities,
    leave,
    make_room,
)
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.budget import KvBudget, OverBudgetError, OwnEviction
from embodied_kv.kv.pool import Evictable
from embodied_kv.kv.transfer import copy_to
from embodied_kv.text import listed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Eviction:
    """How a capsule leaves the device for other KV.

    Attributes:
        bytes: The bytes that it frees on the device.
        tier: The tier that stores it afterwards. None: the tiers below make room by the policy
            'drop', which may drop this capsule or another one.
        quick: Whether nothing is copied or written.
    """

    bytes: int
    tier: Tier | None
    quick: bool


class Registry:
    """Capsules by unique names, in tiers of bounded size; initially those on the disk.

    `room(bytes, cost)` is a context manager that reserves bytes of a shared device while a copy is
    made there, or raises OverBudgetError; `cost` (s, 0: unknown) bounds the cost of what is
    evicted. A pool such as `DevicePool` sets it. Impossible operations raise CapsuleError. An
    error never loses a capsule; only the policy does.

    Args:
        fingerprint: The fingerprint of this engine.
        disk: None for no disk tier.
        device: The device of the fastest tier.
        copy: As `copy_to`. It may use a CUDA stream, and returns when the copy is complete.
        clock: Returns seconds since the epoch.
    """

    def __init__(
        self,
        fingerprint: str,
        capacities: TierCapacities | None = None,
        disk: Disk | None = None,
        *,
        device: torch.device | str = 'cpu',
        copy: Callable[[Tensor, torch.device], Tensor] = copy_to,
        clock: Callable[[], float] = time.time,
    ) -> None:
        capacities = capacities or TierCapacities()
        self.fingerprint = fingerprint
        self.capacities = replace(capacities, disk=0) if disk is None else capacities
        self._disk = disk if self.capacities.disk != 0 else None
        self._copier = TierCopier(self._disk, device, copy)
        self.room: Callable[[int, float], AbstractContextManager] = lambda *_: nullcontext()
        self._used_at: dict[str, float] = {}  # s, steady clock
        self._coming: list[str] = []  # names that claim room now: their copies are not evicted
        self._clock = clock
        self._changing, self._lock = threading.Lock(), threading.Lock()
        with ExitStack() as opened:
            if self._disk is not None:
                opened.enter_context(self._disk.claimed())
            found = self._disk.entries() if self._disk is not None else ()
            self._items: OrderedDict[str, CapsuleCopy] = OrderedDict(  # least recently used first
                (manifest.name, CapsuleCopy.of(manifest, {Tier.DISK}))
                for manifest in sorted(found, key=lambda manifest: manifest.created)
            )
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Release the folder of the disk, which otherwise stays locked until the process ends.

        No other method may be called afterwards.
        """
        with self._changing:
            self._opened.close()

    def add(self, capsule: Capsule, tier: Tier = Tier.DEVICE) -> None:
        """Store a capsule in a tier. Raises NoRoomError, or CapsuleError if the name exists."""
        check_name(capsule.name)
        self._check_new(capsule.name)
        item = CapsuleCopy.of(capsule, set(), capsule)
        with self._room(item, tier, self.capacities), self._changing:
            self._check_new(capsule.name)  # another thread may have been first
            self._keep(self._with_copy(item, tier, self.capacities), {tier})
            self._touch(capsule.name)

    def __contains__(self, name: str) -> bool:
        """Return whether a capsule has this name, in any tier."""
        return name in self.names()

    def get(self, name: str, promote: Tier = Tier.HOST) -> Capsule:
        """Return a capsule from the device or the host; load it if only the disk stores it.

        Args:
            name: Name of the capsule.
            promote: The tier that stores a loaded capsule from now on, if it is not pinned and
                has room without dropping another capsule; DISK for none.

        Raises:
            CapsuleError: The name is unknown, the file is damaged, or the fingerprint is another
                engine's, which is checked before the tensors are read.
        """
        self._touch(name)
        item = self._item(name)
        if item.capsule is not None:
            return item.capsule
        with self._changing:
            item = self._item(name)
            if item.capsule is not None:  # another thread was first
                return item.capsule
            self._check_fits(item)
            item = self._copier.loaded(item)
            if item.pinned or promote is Tier.DISK:
                return item.in_memory
            policy: Policy = 'refuse' if self.capacities.policy == 'refuse' else 'demote'
            capacities = replace(self.capacities, policy=policy)
            cost = item.bytes * self.byte_seconds
            # It is readable, even if another one cannot be moved to a full disk.
            with suppress(CapsuleError), self._room(item, promote, capacities, cost):
                item = self._with_copy(item, promote, capacities)
                self._put(item)
            return item.in_memory

    def pin(self, name: str, pinned: bool = True) -> None:
        """Pin a capsule, so that only `move` moves it and nothing drops it; or unpin it."""
        with self._changing:
            self._put(replace(self._item(name), pinned=pinned))

    def move(self, name: str, tier: Tier) -> None:
        """Move a capsule to a tier, even if pinned, but not off the disk. Raises NoRoomError."""
        with self._changing:
            before = self._item(name)
            if tier in before.tiers:
                return self._move(before, tier)
            self._check_fits(before)
            loaded = self._copier.loaded(before)  # may fail, so it precedes any eviction
        with self._room(before, tier, self.capacities), self._changing:
            now = self._item(name)
            self._move(loaded if now is before else now, tier)

    def _move(self, item: CapsuleCopy, tier: Tier) -> None:
        self._keep(self._with_copy(item, tier, self.capacities), {tier, Tier.DISK})
        self._touch(item.name)

    def device_evictions(self) -> dict[str, Eviction]:
        """Return the capsules that may leave the device, by name; none while others move."""
        if self._changing.locked():
            return {}
        spare = self._spare()
        found = {item.name: self._eviction(item, spare) for item in self._as_listed()}
        return {name: eviction for name, eviction in found.items() if eviction is not None}

    def evict_from_device(self, name: str) -> int:
        """Release a copy on the device as `device_evictions` states; return the bytes freed.

        The result is 0 if the capsule may not leave, or if others are being moved. The call does
        not count as a use.
        """
        if not self._changing.acquire(blocking=False):
            return 0
        try:
            items = self._still()
            item = next((item for item in items if item.name == name), None)
            eviction = None if item is None else self._eviction(item, self._spare())
            if item is None or eviction is None:
                return 0
            if eviction.tier is None:
                self._make(leave(items, name, Tier.DEVICE, self.capacities))
            else:
                item = self._copier.copied(item, eviction.tier)
                self._keep(item, item.tiers - {Tier.DEVICE})
            return eviction.bytes
        except CapsuleError:  # a file could not be written
            return 0
        finally:
            self._changing.release()

    def _eviction(self, item: CapsuleCopy, spare: Mapping[Tier, float]) -> Eviction | None:
        if item.pinned or Tier.DEVICE not in item.tiers:
            return None
        on_disk, policy = Tier.DISK in item.tiers, self.capacities.policy
        fits = {tier for tier in Tier if item.size(tier) <= spare[tier]}
        if Tier.HOST in fits:
            return Eviction(item.bytes, Tier.HOST, self._copier.on_host)
        if on_disk or (Tier.DISK in fits and policy != 'refuse'):
            return Eviction(item.bytes, Tier.DISK, on_disk)
        if policy == 'drop':
            return Eviction(
                item.bytes, None, self._copier.on_host and not self.capacities.of(Tier.DISK)
            )
        return None

    def _spare(self) -> dict[Tier, float]:
        """Return the free bytes of each tier; -1 if it does not exist."""
        bounds = {tier: self.capacities.of(tier) for tier in Tier}
        return {tier: most - self.used(tier) if most else -1 for tier, most in bounds.items()}

    def evictable_bytes(self, size: int, most: float) -> int:
        """Return how many of `most` bytes the policy frees on the device for `size` new ones.

        Waits for a movement in progress.
        """
        with self._changing:
            movable = [
                item.bytes
                for item in self._still()
                if Tier.DEVICE in item.tiers and not item.pinned
            ]
            shares = {min(math.ceil(most), total) for total in accumulate(movable)}
            for share in sorted(shares, reverse=True):
                with suppress(NoRoomError):
                    self._moves_for(size, share)
                    return share
            return 0

    def evict_bytes(self, size: int, share: int) -> int:
        """Free `share` bytes as `evictable_bytes` has stated; return the bytes freed.

        The result is 0 if the capsules have come into use or were dropped since.
        """
        with self._changing:
            before = self.used(Tier.DEVICE)
            with suppress(NoRoomError):
                self._make(self._moves_for(size, share))
            return before - self.used(Tier.DEVICE)

    def _moves_for(self, size: int, share: int) -> list[Move]:
        """Return the moves that free `share` bytes of the device. Raises NoRoomError."""
        left = self.used(Tier.DEVICE) - share
        most = int(min(left + size, self.capacities.of(Tier.DEVICE)))
        return make_room(
            self._still(), '', size, Tier.DEVICE, replace(self.capacities, device=most)
        )

    def _still(self) -> list[CapsuleCopy]:
        """Return all items, least recently used first; those being promoted count as pinned."""
        with self._lock:
            items, coming = list(self._items.values()), set(self._coming)
        return [replace(item, pinned=True) if item.name in coming else item for item in items]

    def idle(self, name: str, now: float | None = None) -> float:
        """Return the seconds since a capsule was added or used; 0 if neither happened here.

        now: Monotonic time (s), so that several capsules can be compared; None for the present.
        """
        now = time.monotonic() if now is None else now
        return max(0.0, now - self._used_at.get(name, now))

    @property
    def byte_seconds(self) -> float:
        """Return the time (s per byte) of the last copy between device and host, initially 0."""
        return self._copier.byte_seconds

    def drop(self, name: str) -> None:
        """Drop a capsule from every tier, or a damaged file of that name, which is not listed."""
        with self._changing:
            disk = self._disk
            if disk is not None and name not in self._items and name in disk.names():
                disk.drop(name)
                return
            item = self._item(name)
            if item.pinned:
                raise CapsuleError(f'capsule {name} is pinned: unpin it first')
            self._keep(item, set())

    def entries(self) -> list[CapsuleRecord]:
        """Return all capsules, least recently used first."""
        now = self._clock()
        return [CapsuleRecord.of(item, now, self.fingerprint) for item in self._as_listed()]

    def used(self, tier: Tier) -> int:
        """Return the bytes of all copies in the tier."""
        with self._lock:
            return sum(item.size(tier) for item in self._items.values() if tier in item.tiers)

    def check_integrity(self) -> None:
        """Raise AssertionError with the invariant that does not hold."""
        with self._changing:
            for tier in Tier:
                used = self.used(tier)
                assert used <= self.capacities.of(tier), f'{used} bytes in the {tier} tier'
            for name, item in self._items.items():
                memory = item.tiers - {Tier.DISK}
                assert item.tiers and name == item.name, f'{name} lies nowhere'
                assert len(memory) == (item.capsule is not None), f'{name} lies in {memory}'
            listed = {item.name for item in self._items.values() if Tier.DISK in item.tiers}
            found = set() if self._disk is None else {e.name for e in self._disk.entries()}
            assert listed == found, f'listed on the disk: {listed}, found: {found}'

    @contextmanager
    def _room(
        self, item: CapsuleCopy, tier: Tier, capacities: TierCapacities, cost: float = math.inf
    ) -> Iterator[None]:
        """Reserve room on the device while an item is copied there; nothing for other tiers.

        An item that cannot be stored is refused before anything is evicted for it.
        """
        if tier is not Tier.DEVICE:
            yield
            return
        self._check_fits(item)
        make_room(self._as_listed(), item.name, item.bytes, tier, capacities)
        with self._lock:
            self._coming.append(item.name)
        try:
            with self.room(item.bytes, cost):
                yield
        except OverBudgetError as error:
            raise NoRoomError(f'{error}{self._device_use()}') from error
        finally:
            with self._lock:
                self._coming.remove(item.name)

    def _device_use(self) -> str:
        """Return the capsules that remain on the device, to be added to an OverBudgetError."""
        here = [item for item in self._as_listed() if Tier.DEVICE in item.tiers]
        policy = self.capacities.policy
        if not here or policy == 'drop':
            return ''
        why = "moves none for another: move one, or set eviction_policy 'demote' or 'drop'"
        if policy == 'demote':
            why = "loses none: raise the capacity of a tier below, or set eviction_policy 'drop'"
        names = listed([f'{item.name} {item.bytes}' for item in here])
        return f'; bytes of capsules on the device: {names}; the policy {policy!r} {why}'

    def _with_copy(self, item: CapsuleCopy, tier: Tier, capacities: TierCapacities) -> CapsuleCopy:
        """Return the item with a copy in the tier, after making room for it."""
        if tier in item.tiers:
            return item
        self._check_fits(item)
        moves = make_room(self._as_listed(), item.name, item.size(tier), tier, capacities)
        item = self._copier.loaded(item)  # may fail, so it precedes any eviction
        self._make(moves)
        return self._copier.copied(item, tier)

    def _make(self, moves: Sequence[Move]) -> None:
        for move in moves:
            other = self._items[move.name]
            if move.target is not None:
                other = self._copier.copied(other, move.target)
            left = other.tiers - {move.source}
            self._keep(other, left)
            if not left:
                log.warning(
                    'capsule %s (%d bytes) is dropped for another one: the %s tier is full',
                    move.name,
                    other.size(move.source),
                    move.source.value,
                )

    def _keep(self, item: CapsuleCopy, tiers: Set[Tier]) -> None:
        """Release the copies in other tiers, then update the table."""
        item = self._copier.only(item, tiers)
        if item.tiers:
            self._put(item)
        else:
            with self._lock:
                del self._items[item.name]
                self._used_at.pop(item.name, None)

    def _as_listed(self) -> list[CapsuleCopy]:
        with self._lock:
            return list(self._items.values())

    def names(self) -> set[str]:
        """Return all names that exist, including those of files that cannot be read."""
        with self._lock:
            listed = set(self._items)
        return listed if self._disk is None else listed | set(self._disk.names())

    def _put(self, item: CapsuleCopy) -> None:
        with self._lock:
            self._items[item.name] = item

    def _touch(self, name: str) -> None:
        with self._lock:
            if name in self._items:
                self._items.move_to_end(name)
                self._used_at[name] = time.monotonic()

    def _item(self, name: str) -> CapsuleCopy:
        with self._lock:
            item, there = self._items.get(name), ', '.join(self._items) or 'nothing'
        if item is None:
            if self._disk is not None and name in self._disk.names():
                self._disk.entry(name)  # raises, with the fault of the file
            raise CapsuleError(f'no capsule {name!r}; there is {there}', ErrorCode.NOT_FOUND)
        return item

    def _check_new(self, name: str) -> None:
        if name in self:
            raise CapsuleError(
                f'there is a capsule {name} already: drop it first', ErrorCode.ALREADY_EXISTS
            )

    def _check_fits(self, item: CapsuleCopy) -> None:
        if item.fingerprint != self.fingerprint:
            raise CapsuleError(
                f'capsule {item.name} {mismatch(item.fingerprint, self.fingerprint)}',
                ErrorCode.MISMATCH,
            )


class DevicePool:
    """The device tier of a registry as a pool of the KV budget.

    Other KV moves capsules to a tier below; only the policy 'drop' loses one. Older capsules make
    room for a new one as in a full tier. `kv_budget` is the budget that they share, None for none.
    """

    name = 'capsules'

    def __init__(self, registry: Registry, kv_budget: KvBudget | None = None) -> None:
        self._registry = registry
        if kv_budget is not None:
            kv_budget.join(self)
            registry.room = partial(self._room, kv_budget)

    @property
    def bytes(self) -> int:
        return self._registry.used(Tier.DEVICE)

    bytes_used = bytes_reserved = bytes

    def evictable(self) -> list[Evictable]:
        """Return the unpinned capsules that may leave, least recently used first.

        Each offer assumes that no other capsule leaves and takes the last room in a tier below.
        Its cost is that of a copy back from the host, or 0 (unknown) from elsewhere.
        """
        seconds = self._registry.byte_seconds
        return [
            Evictable(
                eviction.bytes,
                eviction.bytes * seconds if eviction.tier is Tier.HOST else 0.0,
                partial(self._registry.evict_from_device, name),
                self._registry.idle(name),
                quick=eviction.quick,
            )
            for name, eviction in self._registry.device_evictions().items()
        ]

    def _room(self, kv_budget: KvBudget, size: int, cost: float) -> AbstractContextManager[None]:
        """Claim bytes of the budget; a promotion, whose cost is bounded, evicts no capsule."""
        own = partial(self.own, size) if cost == math.inf else lambda lacking: None
        return kv_budget.claim(self, size, cost, wait=True, own=own)

    def own(self, size: int, lacking: float) -> OwnEviction | None:
        """Return what older capsules free for a new one of `size` bytes.

        None if the policy 'demote' frees nothing; each capsule may still leave by its own offer.
        """
        registry = self._registry
        most = registry.evictable_bytes(size, lacking)
        if not most and registry.capacities.policy == 'demote':
            return None
        here = [r.name for r in registry.entries() if r.tier is Tier.DEVICE and not r.pinned]
        idle = max(map(registry.idle, here), default=0.0)
        return OwnEviction(
            most, most * registry.byte_seconds, idle, partial(registry.evict_bytes, size)
        )

    def check_integrity(self) -> None:
        """Raise AssertionError with the invariant of a tier that does not hold."""
        self._registry.check_integrity()
