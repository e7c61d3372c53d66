"""The real pools of a robot in virtual time, without memory: tensors have sizes and no bytes.

Knows how to run a story: frames, streams, loads and capsules, with given costs. Does not know
which way is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from benchmarks.plane.settings import MIB, Settings
from benchmarks.plane.story import Tick
from embodied_kv.capsule.capsule import Boundary, Capsule
from embodied_kv.capsule.registry import DevicePool, Registry
from embodied_kv.capsule.tiers import NoRoomError, Tier, TierCapacities
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.budget import KvBudget, OverBudgetError, OwnEviction
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.eviction import EvictionOrder
from embodied_kv.kv.handle import KvHandle
from embodied_kv.kv.manager import KvManager
from embodied_kv.kv.pool import Evictable
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.memory.cache import HostCache

META = torch.device('meta')
QUESTION = tuple(range(3, 15))  # tokens
RESERVED = 3  # rows: one is read, one is the newest, one is written
WORD, EOS = 3, 1


@dataclass(frozen=True)
class Way:
    """How the budget is divided.

    language, memory, capsules: bytes of each, as fixed shares. order: of the evictions of one
    budget; None: fixed shares.
    """

    language: int = 0
    memory: int = 0
    capsules: int = 0
    order: EvictionOrder | None = None


class World:
    """The pools of a robot, and what a story cost.

    counts: of requests and their outcomes. lost: s spent on recomputing, by kind.
    """

    def __init__(self, settings: Settings, way: Way) -> None:
        self.settings, self.now = settings, 0.0
        self.counts: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        shared = None if way.order is None else KvBudget(settings.budget, way.order)
        self.kv_budget = shared or KvBudget(way.language)
        s = settings.sizes
        size = dict(
            layers=s.layers, kv_heads=1, head_dim=s.head_dim, dtype=torch.float32, device=META
        )
        prefixes = Arena(rows=s.rows, max_tokens=s.prefix_tokens, **size)
        decode_kv = Arena(rows=s.streams, max_tokens=s.decode_tokens, **size)
        self.kv = KvManager(
            prefixes,
            decode_kv,
            CompressedArena(prefixes, rows=1, tokens=0),
            RESERVED,
            clock=lambda: self.now,
            kv_budget=self.kv_budget,
            floor=RESERVED * prefixes.bytes_per_row,
        )
        self.kv.streams.token_seconds = settings.costs.token
        most = settings.budget if shared else way.memory
        self.cache = HostCache(most, shared, lambda: self.now)
        device = None if shared else way.capsules
        below = lambda tensor, device: tensor  # noqa: E731  # only a restore has a cost
        self.registry = Registry('bench', TierCapacities(device=device), copy=below, device=META)
        self._used_at: dict[str, float] = {}  # s, by capsule; oldest first
        if shared:
            shared.join(self.cache)
            _GivenCosts(self, shared)

    def live(self, story: Iterable[Tick], first: int = 0) -> World:
        """Run all ticks of a story, and return this world. first: number of earlier ticks."""
        for number, tick in enumerate(story, first):
            self.now = number / self.settings.rate
            handle = self._frame(number)
            if handle is not None:
                for tokens in tick.questions:
                    self._ask(handle, tokens)
            for name, size in tick.units:
                self._load(name, size)
            for size in tick.snapshots:
                self._snapshot(f'c{self.counts["snapshots"]}', size)
            for rank in tick.restores:
                self._restore(rank)
            self._speak()
            self.counts['streams held'] += len(self.kv.streams)
            self.counts['capsules held'] += self._on_device()
        self.kv.check_integrity()
        self.kv_budget.check_integrity()
        self.registry.check_integrity()
        return self

    def _frame(self, number: int) -> KvHandle | None:
        self.counts['frames'] += 1
        try:
            row = self.kv.reserve(self.now)
        except OutOfRowsError:
            self.counts['frames refused'] += 1
            return None
        return self.kv.frames.commit(
            row,
            self.settings.sizes.prefix_tokens,
            robot='',
            sequence=number,
            stamp=number,
            deadline=self.now + 1 / self.settings.rate,
            prefill_ms=self.settings.costs.prefill * 1e3,
        )

    def _ask(self, handle: KvHandle, tokens: int) -> None:
        self.counts['questions'] += 1
        try:
            self.kv.create(handle, Query('?', QUESTION, tokens))
        except OverBudgetError:
            self.lost['streams'] += (
                self.settings.costs.prefill + tokens * self.settings.costs.token
            )

    def _speak(self) -> None:
        for _ in range(self.settings.talk.per_frame):
            new = [stream for stream in self.kv.streams.live() if stream.is_new]
            old = [stream for stream in self.kv.streams.live() if not stream.is_new]
            for streams, tokens in ((new, len(QUESTION)), (old, 1)):
                live = self.kv.streams.grow(streams, tokens)
                self.kv.streams.update(live, [[WORD]] * len(live), EOS)
        costs = self.settings.costs
        for stream in self.kv.streams.pop_ended():
            if stream.reason == 'length':
                self.counts['answers'] += 1
            else:
                self.lost['streams'] += costs.prefill + len(stream.tokens) * costs.token

    def _load(self, name: str, size: int) -> None:
        self.counts['units'] += 1
        if self.cache.get(name, 0) is not None:
            self.counts['hits'] += 1
            return
        self.lost['memory'] += (seconds := size / MIB * self.settings.costs.load_mib)
        half = torch.empty(size // 2, dtype=torch.uint8, device=META)
        self.cache.put(name, 0, (half, half), seconds)

    def _snapshot(self, name: str, size: int) -> None:
        self.counts['snapshots'] += 1
        tensors = {'kv': torch.empty(size, dtype=torch.uint8, device=META)}
        capsule = Capsule(name, Boundary('bench', 0, 0), 'bench', tensors, {}, self.now)
        try:
            self.registry.add(capsule)
        except NoRoomError:
            self.registry.add(capsule, Tier.HOST)
        self._used_at[name] = self.now
        if len(self._used_at) > self.settings.branch.kept:
            oldest = next(iter(self._used_at))
            self.registry.drop(oldest)
            del self._used_at[oldest]

    def _restore(self, rank: float) -> None:
        recent = [*self._used_at][::-1][: self.settings.branch.recent]
        if not recent:
            return
        name = recent[int(rank * len(recent))]
        self.counts['restores'] += 1
        self._used_at[name] = self.now
        record = next(entry for entry in self.registry.entries() if entry.name == name)
        if record.tier is Tier.DEVICE:
            self.counts['kept'] += 1
            self.registry.get(name)
            return
        self.lost['capsules'] += record.bytes / MIB * self.settings.costs.capsule_mib
        with suppress(NoRoomError):
            self.registry.move(name, Tier.DEVICE)

    def _on_device(self) -> int:
        return sum(entry.tier is Tier.DEVICE for entry in self.registry.entries())

    def idle(self, name: str) -> float:
        """Return the s since a capsule was last used."""
        return self.now - self._used_at.get(name, self.now)


class _GivenCosts(DevicePool):
    """The pool of capsules in virtual time, on a robot's CPU, with a given cost of a restore."""

    def __init__(self, world: World, kv_budget: KvBudget) -> None:
        self._world = world
        super().__init__(world.registry, kv_budget)

    def evictable(self) -> list[Evictable]:
        names = self._world.registry.device_evictions()
        by_mib = self._world.settings.costs.capsule_mib
        return [
            replace(
                offer, cost=offer.bytes / MIB * by_mib, idle=self._world.idle(name), quick=True
            )
            for name, offer in zip(names, super().evictable(), strict=True)
        ]

    def own(self, size: int, lacking: float) -> OwnEviction | None:
        own = super().own(size, lacking)
        if own is None:
            return None
        here = [e.name for e in self._world.registry.entries() if e.tier is Tier.DEVICE]
        cost = own.bytes / MIB * self._world.settings.costs.capsule_mib
        return replace(own, cost=cost, idle=max(map(self._world.idle, here), default=0.0))
