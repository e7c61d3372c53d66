"""The capsules of this process by name: where each lies, which are pinned, which fit.

It knows names, tiers and the order of use. It does not know what a capsule means, nor when one is
taken.

A capsule never changes, so a copy of it stays true. What was once on the disk stays there when it
is used again: going back to it writes nothing, and a crash does not lose it.

Threads: any method may be called from any thread. `_changing` is held by whoever moves bytes, one
at a time; `_lock` guards the table, for no longer than it takes to look. So `get` from memory,
`entries` and `used` never wait for a copy or a file, and what `get` gave stays whole whatever
happens to its name. The others may wait for a file that is being written: call them from a thread
that has no deadline.
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
from itertools import accumulate

import torch
from torch import Tensor

from embodied_kv.capsule.capsule import Capsule, CapsuleError
from embodied_kv.capsule.copies import CapsuleCopy, TierCopier, TierStore
from embodied_kv.capsule.disk import NAME
from embodied_kv.capsule.fingerprint import mismatch
from embodied_kv.capsule.record import CapsuleRecord
from embodied_kv.capsule.tiers import Move, NoRoom, Policy, Tier, TierCapacities, leave, make_room
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.budget import OverBudget
from embodied_kv.kv.transfer import copy_to
from embodied_kv.text import listed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Leaving:
    """How a capsule leaves the device for other KV.

    bytes: that it frees there. tier: what has it then; None: those below make room for it by the
    policy 'drop', which may cost it or another. quick: nothing is copied or written for it.
    """

    bytes: int
    tier: Tier | None
    quick: bool


class Registry:
    """Capsules by unique names, in tiers of bounded size; at the start, those on the disk.

    fingerprint: of this engine. disk: None for no disk tier. device: the fastest tier's. copy: as
    `copy_to`; one may use a CUDA stream of its own, but returns when the copy is done. clock: s
    since the epoch. room: whoever shares the device puts here what gives so many bytes of it, for
    as long as a block takes them, or raises OverBudget; at the cost, in s, of what is worth no
    more, 0: not known. What cannot be done raises CapsuleError; whatever is raised, no capsule is
    lost but by the policy.
    """

    def __init__(
        self,
        fingerprint: str,
        capacities: TierCapacities | None = None,
        disk: TierStore | None = None,
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
        self._coming: list[str] = []  # names that claim room now: no copy of them gives way
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
        """Let another registry use the folder of the disk. Nothing else is called afterwards.

        A registry that is not closed keeps the folder until the process ends.
        """
        with self._changing:
            self._opened.close()

    def add(self, capsule: Capsule, tier: Tier = Tier.DEVICE) -> None:
        """Keeps it in that tier. Raises NoRoom, or CapsuleError for a name that is in use."""
        if not NAME.fullmatch(capsule.name):
            raise CapsuleError(
                f'{capsule.name[:80]!r} cannot name a capsule: use 1 to 64 letters, digits, '
                'dots, _ and -, with no dot in front'
            )
        self._check_new(capsule.name)
        item = CapsuleCopy.of(capsule, set(), capsule)
        with self._room(item, tier, self.capacities), self._changing:
            self._check_new(capsule.name)  # another thread may have been first
            self._keep(self._with_copy(item, tier, self.capacities), {tier})
            self._touch(capsule.name)

    def __contains__(self, name: str) -> bool:
        """Return whether a capsule has this name, in any tier."""
        return name in self._items or self._has_file(name)

    def get(self, name: str, promote: Tier = Tier.HOST) -> Capsule:
        """The capsule on the device or the host, where it lies; one on the disk is loaded.

        promote: where a loaded one is kept from then on, if it is not pinned and there is room
        for it that costs no other capsule; DISK for nowhere. Raises CapsuleError where the
        fingerprint is another engine's, before its bytes are read.
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
            with suppress(NoRoom), self._room(item, promote, capacities, cost):
                item = self._with_copy(item, promote, capacities)
                self._put(item)
            return item.in_memory

    def pin(self, name: str) -> None:
        """From now on nothing but `move` moves it, and nothing drops it."""
        with self._changing:
            self._put(replace(self._item(name), pinned=True))

    def unpin(self, name: str) -> None:
        """It may give way to others again."""
        with self._changing:
            self._put(replace(self._item(name), pinned=False))

    def move(self, name: str, tier: Tier) -> None:
        """To that tier, even if it is pinned; a use. Its copy on the disk stays. Raises NoRoom."""
        with self._changing:
            before = self._item(name)
            if tier in before.tiers:
                return self._move(before, tier)
            self._check_fits(before)
            loaded = self._copier.loaded(before)  # may fail: before anything gives way
        with self._room(before, tier, self.capacities), self._changing:
            now = self._item(name)
            self._move(loaded if now is before else now, tier)

    def _move(self, item: CapsuleCopy, tier: Tier) -> None:
        self._keep(self._with_copy(item, tier, self.capacities), {tier, Tier.DISK})
        self._touch(item.name)

    def could_leave(self) -> dict[str, Leaving]:
        """What is not needed on the device, by name. None leaves while others are moved."""
        if self._changing.locked():
            return {}
        spare = self._spare()
        found = {item.name: self._leaving(item, spare) for item in self._as_listed()}
        return {name: leaving for name, leaving in found.items() if leaving is not None}

    def leave_device(self, name: str) -> int:
        """Gives the copy on the device up, as `could_leave` says -> bytes freed; it is no use.

        0 where it may not leave, or others are being moved.
        """
        if not self._changing.acquire(blocking=False):
            return 0
        try:
            items = self._still()
            item = next((item for item in items if item.name == name), None)
            leaving = None if item is None else self._leaving(item, self._spare())
            if item is None or leaving is None:
                return 0
            if leaving.tier is None:
                self._make(leave(items, name, Tier.DEVICE, self.capacities))
            else:
                item = self._copier.copied(item, leaving.tier)
                self._keep(item, item.tiers - {Tier.DEVICE})
            return leaving.bytes
        except CapsuleError:  # no file could be written
            return 0
        finally:
            self._changing.release()

    def _leaving(self, item: CapsuleCopy, spare: Mapping[Tier, float]) -> Leaving | None:
        """How it leaves the device; None where it may not. spare: as `_spare`."""
        if item.pinned or Tier.DEVICE not in item.tiers:
            return None
        on_disk, policy = Tier.DISK in item.tiers, self.capacities.policy
        fits = {tier for tier in Tier if item.size(tier) <= spare[tier]}
        if Tier.HOST in fits:
            return Leaving(item.bytes, Tier.HOST, self.on_host)
        if on_disk or Tier.DISK in fits and policy != 'refuse':
            return Leaving(item.bytes, Tier.DISK, on_disk)
        if policy == 'drop':
            return Leaving(item.bytes, None, self.on_host and not self.capacities.of(Tier.DISK))
        return None

    def _spare(self) -> dict[Tier, float]:
        """Bytes that each tier has left; -1 where there is no such tier."""
        bounds = {tier: self.capacities.of(tier) for tier in Tier}
        return {tier: most - self.used(tier) if most else -1 for tier, most in bounds.items()}

    def can_give(self, size: int, most: float) -> int:
        """Bytes of the device that capsules give up by the policy for a new one of `size` bytes.

        They are `most`, or as many as the policy and the tiers below allow. It waits for what is
        being moved.
        """
        with self._changing:
            movable = [
                item.bytes
                for item in self._still()
                if Tier.DEVICE in item.tiers and not item.pinned
            ]
            shares = {min(math.ceil(most), total) for total in accumulate(movable)}
            for share in sorted(shares, reverse=True):
                with suppress(NoRoom):
                    self._moves_for(size, share)
                    return share
            return 0

    def give(self, size: int, share: int) -> int:
        """Makes capsules give up `share` bytes as `can_give` says -> bytes freed.

        0 where they have come into use or gone in the meantime.
        """
        with self._changing:
            before = self.used(Tier.DEVICE)
            with suppress(NoRoom):
                self._make(self._moves_for(size, share))
            return before - self.used(Tier.DEVICE)

    def _moves_for(self, size: int, share: int) -> list[Move]:
        """The moves of `make_room` that free so many bytes of the device. Raises NoRoom."""
        left = self.used(Tier.DEVICE) - share
        most = int(min(left + size, self.capacities.of(Tier.DEVICE)))
        return make_room(
            self._still(), '', size, Tier.DEVICE, replace(self.capacities, device=most)
        )

    def _still(self) -> list[CapsuleCopy]:
        """All items, least recently used first; those that are on their way up are pinned."""
        with self._lock:
            items, coming = list(self._items.values()), set(self._coming)
        return [replace(item, pinned=True) if item.name in coming else item for item in items]

    def idle(self, name: str, now: float | None = None) -> float:
        """Seconds since it came or was last used; 0 where it did neither, in this process.

        now: s, steady clock, so that several can be compared; None for this moment.
        """
        now = time.monotonic() if now is None else now
        return max(0.0, now - self._used_at.get(name, now))

    @property
    def on_host(self) -> bool:
        """Whether the device's memory is that of the host: then nothing is copied between them."""
        return self._copier.on_host

    @property
    def byte_seconds(self) -> float:
        """Seconds a byte, of the last copy between device and host; 0 before the first."""
        return self._copier.byte_seconds

    def drop(self, name: str) -> None:
        """Gives it up in every tier; also a damaged file of that name, which is not listed."""
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
        """All that there are, least recently used first."""
        now = self._clock()
        return [CapsuleRecord.of(item, now, self.fingerprint) for item in self._as_listed()]

    def used(self, tier: Tier) -> int:
        """Bytes of all copies in the tier."""
        with self._lock:
            return sum(item.size(tier) for item in self._items.values() if tier in item.tiers)

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law."""
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
        """On the device by whoever shares it, while it is taken; else what the tier has.

        What cannot be kept there is refused before anything gives way for it.
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
        except OverBudget as error:
            raise NoRoom(f'{error}{self._who_stays()}') from error
        finally:
            with self._lock:
                self._coming.remove(item.name)

    def _who_stays(self) -> str:
        """What a refusal for want of a shared budget adds: the capsules that keep the device."""
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
        """The item with a copy in the tier, for which others have given way."""
        if tier in item.tiers:
            return item
        self._check_fits(item)
        moves = make_room(self._as_listed(), item.name, item.size(tier), tier, capacities)
        item = self._copier.loaded(item)  # may fail: before anything gives way
        self._make(moves)
        return self._copier.copied(item, tier)

    def _make(self, moves: Sequence[Move]) -> None:
        """Makes the moves in their order."""
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
        """Gives up the copies in other tiers; the table says so when it is done."""
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
        """Return all names that are in use, also those of files that cannot be read."""
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
                self._disk.entry(name)  # raises, with what is wrong with it
            raise CapsuleError(f'no capsule {name!r}; there is {there}', ErrorCode.NOT_FOUND)
        return item

    def _has_file(self, name: str) -> bool:
        return self._disk is not None and name in self._disk.names()

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
