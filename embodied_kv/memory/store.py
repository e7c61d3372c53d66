"""Memory that survives restarts: segments in a database, their KV in files beside it.

Knows what belongs together. Does not know how KV is computed, nor which segments form a unit.

A file of KV has its final name and is on the medium before the transaction that names it, and goes
after the transaction that forgets it. So a crash anywhere leaves every committed record with its
file, and at worst files without a record, which are swept when the folder is opened. A folder is
open in one process at a time, by a lock that ends with the process.

On a full disk a change is done again with the space of a file that is held for it: what only
removes always succeeds, and what adds does if the database has room inside. KV files that are to
go are then removed before their records; a record without its file counts as no KV.

Source: KEEP, section 5: `load_memory`, over a table of where each memory lies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from threading import RLock
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from embodied_kv import storage
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.budget import KvBudget
from embodied_kv.memory.cache import HostCache
from embodied_kv.memory.files import DiskFull, KvFiles, explained
from embodied_kv.memory.records import KeptUnit, Records, SegmentDraft, SegmentRecord
from embodied_kv.memory.segment import KINDS, MemoryFault, Segment
from embodied_kv.memory.unit import UnitKv

log = logging.getLogger(__name__)

T = TypeVar('T')
DATABASE, LOCK, RESERVE = 'memory.sqlite', 'memory.lock', 'memory.reserve'
RESERVED = 2**20  # bytes, for the journal of one change
PIECE = 16  # units that one change forgets, so that its journal fits
HEADER = 256  # bytes of a KV file before the tensor, at most


@dataclass(frozen=True)
class Change:
    """What an upsert or a removal did. lost: keys of the units whose KV it invalidated."""

    segment: Segment
    changed: bool
    lost: tuple[str, ...] = ()


class MemoryStore:
    """The memory in one folder, which is created where it does not exist.

    fingerprint: of the model whose KV it holds. cache_bytes: host memory that loaded layers may
    take, kv_budget: whose budget they share. renew: where another model made the folder, keep its
    segments and drop its KV. Any thread may call any method; `load_memory` never waits for a
    change that is being written.

    Raises MemoryFault for a folder of another model, one that is open already, and what cannot be
    read or written.
    """

    def __init__(
        self,
        folder: str | Path,
        fingerprint: str,
        cache_bytes: int = 2**28,
        renew: bool = False,
        kv_budget: KvBudget | None = None,
    ) -> None:
        kv_budget = kv_budget or KvBudget()
        self.folder, self.cache = Path(folder), HostCache(cache_bytes, kv_budget)
        self._lock, self._files = RLock(), KvFiles(self.folder)
        with ExitStack() as opened:
            with explained(self.folder, 'opened'):
                storage.private_folder(self.folder)
                # A file, so that others may lock the folder itself.
                lock = storage.locked(self.folder / LOCK, wait=False, file=True)
                if not opened.enter_context(lock):
                    raise MemoryFault(
                        f'{folder} is open already, maybe in another process',
                        ErrorCode.UNAVAILABLE,
                    )
            self._records = Records(self.folder / DATABASE)
            opened.callback(self._records.close)
            self._reserve = storage.Reserve(self.folder / RESERVE, RESERVED)
            self._kv: dict[str, KeptUnit] = {}
            self._used: dict[str, int] = {}  # by key, the tick of its last use
            self._ticks = count()
            self._most: int | None = None
            self._largest = 0  # bytes of a file, also of one that was not kept
            self._agree(fingerprint, renew)
            self._next = 1
            self.swept = self._read_units()
            kv_budget.join(self.cache)
            opened.callback(kv_budget.leave, self.cache)
            self._opened = opened.pop_all()

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets another open the folder. Nothing is lost without it."""
        with self._lock:
            self._opened.close()

    def limit(self, most: int | None) -> None:
        """Bound the bytes of all KV files; the least recently used units are removed at once.

        most: bytes, None for no bound.
        """
        with self._lock:
            self._most = most
            self._make_room(0)

    @property
    def has_room(self) -> bool:
        """Whether a unit as large as the largest one so far fits without a removal."""
        with self._lock:
            return self._most is None or self._taken + self._largest <= self._most

    @property
    def _taken(self) -> int:
        return sum(kept.file.file_bytes for kept in self._kv.values())

    @property
    def step(self) -> int:
        """Of the world; 0 in a new folder."""
        return int(self.fact('step') or 0)

    def advance(self, steps: int = 1, groups: Mapping[str, int] | None = None) -> int:
        """The world went on. Returns the step that it is at. groups: as `set_groups`."""
        if steps < 0:
            raise ValueError(f'the world does not go back {-steps} steps')
        with self._lock:
            step = self.step + steps

            def work() -> None:
                self._records.set_fact('step', str(step))
                self._records.set_groups(groups or {})

            self._change(work)
            return step

    def fact(self, name: str) -> str | None:
        """What was set under a name."""
        with self._lock:
            return self._records.fact(name)

    def set_fact(self, name: str, value: str) -> None:
        with self._lock:
            self._change(partial(self._records.set_fact, name, value))

    def upsert(
        self, *drafts: SegmentDraft, groups: Mapping[str, int] | None = None
    ) -> tuple[Change, ...]:
        """Adds or changes segments, all or none of them, at the present step.

        A draft with the kind and text of the segment that is there changes nothing. groups: as
        `set_groups`, in the same transaction. Raises MemoryFault for one that is no segment, and
        for an id that comes twice.
        """
        refuse_twice(draft.id for draft in drafts)
        with self._lock:
            step = self.step

            def work() -> tuple[Change, ...]:
                changes = tuple(self._write(draft, step) for draft in drafts)
                self._records.set_groups(groups or {})
                return changes

            changes = self._change(work)
            self._forget([key for change in changes for key in change.lost])
            return changes

    def remove(self, id: str, facts: Mapping[str, str] | None = None) -> Change:
        """Raises MemoryFault if there is no such segment.

        facts: to be set in the same transaction.
        """
        with self._lock:
            segment = self.get(id)
            lost = self._records.units_of(id)

            def work() -> None:
                self._records.delete_units(lost)
                self._records.delete(id)
                for name, value in (facts or {}).items():
                    self._records.set_fact(name, value)

            self._change(work, removes=lost)
            self._forget(lost)
            return Change(segment, True, tuple(lost))

    def get(self, id: str) -> Segment:
        """Raises MemoryFault if there is no such segment."""
        if (segment := self.find(id)) is None:
            raise MemoryFault(f'no segment {id!r}', ErrorCode.NOT_FOUND)
        return segment

    def find(self, id: str) -> Segment | None:
        """The segment of that id, if there is one."""
        with self._lock:
            return self._records.segment(id)

    def list(self, kind: str | None = None) -> tuple[Segment, ...]:
        """All, or those of a kind, in the order in which they came."""
        if kind is not None and kind not in KINDS:
            raise MemoryFault(f'no kind {kind!r}; there are: {", ".join(KINDS)}')
        with self._lock:
            return self._records.segments(kind)

    def __len__(self) -> int:
        with self._lock:
            return self._records.count()

    def segment_records(self) -> tuple[SegmentRecord, ...]:
        """All segments with what is known of them, in the order in which they came."""
        with self._lock:
            return tuple(self._records.segment_records())

    def set_groups(self, groups: Mapping[str, int]) -> None:
        """Notes the group of each id."""
        with self._lock:
            self._change(partial(self._records.set_groups, groups))

    def embed(self, encoder: str, embeddings: Mapping[str, np.ndarray]) -> None:
        """Notes embeddings by id, and the name of the encoder that made all that there are."""

        def work() -> None:
            self._records.embed(embeddings)
            self._records.set_fact('encoder', encoder)

        with self._lock:
            self._change(work)

    def keep(self, *kvs: UnitKv) -> tuple[bool, ...]:
        """Keeps the KV of units, in place of older KV of the same keys.

        False for a unit of which a segment changed since, and for one that does not fit the bound
        of all KV: its KV is not kept.
        """
        with self._lock:
            fits, size = [], 0
            for kv in kvs:
                more = kv.k.nbytes + kv.v.nbytes + HEADER
                fits.append(self._most is None or size + more <= self._most)
                size += more * fits[-1]
                self._largest = max(self._largest, more)
            self._make_room(size)
            good = iter(self._keep([kv for kv, fit in zip(kvs, fits, strict=True) if fit]))
            return tuple(fit and next(good) for fit in fits)

    def _keep(self, kvs: Sequence[UnitKv]) -> Sequence[bool]:
        made: list[KeptUnit] = []
        try:
            for kv in kvs:
                both = torch.stack([kv.k.detach().cpu(), kv.v.detach().cpu()], dim=1)
                made.append(KeptUnit(tuple(kv.lengths), self._files.write(self._next, both)))
                self._next += 1
            self._files.sync()
            pairs = list(zip(kvs, made, strict=True))
            write = self._records.write_unit
            current = self._change(lambda: [write(kv.unit, kept) for kv, kept in pairs])
        except BaseException:
            self._files.remove(kept.file.number for kept in made)
            raise
        for kv, kept, good in zip(kvs, made, current, strict=True):
            if good:
                self._forget([kv.unit.key])
                self._kv[kv.unit.key] = kept
                self.use(kv.unit.key)
            else:
                self._files.remove([kept.file.number])
        return current

    def forget(self, *keys: str) -> None:
        """Drops the KV of these units, where there is any."""
        with self._lock:
            for at in range(0, len(keys), PIECE):
                piece = keys[at : at + PIECE]
                self._change(partial(self._records.delete_units, piece), removes=piece)
                self._forget(piece)

    def use(self, *keys: str) -> None:
        """Notes that the KV of these units is in use: it is removed after that of others."""
        for key in keys:
            if key in self._kv:
                self._used[key] = next(self._ticks)

    def __contains__(self, key: str) -> bool:
        """Whether there is KV under a key."""
        return key in self._kv

    def keys(self) -> tuple[str, ...]:
        """Of all units that have KV."""
        with self._lock:
            return tuple(self._kv)

    @property
    def bytes(self) -> int:
        """Of all KV in files."""
        with self._lock:
            return sum(kept.file.bytes for kept in self._kv.values())

    def lengths(self, key: str) -> tuple[int, ...]:
        """Tokens of each segment of a unit, in order. Raises MemoryFault where it has no KV."""
        return self._kept(key).lengths

    def load_memory(self, memory_id: str, layer: int) -> tuple[Tensor, Tensor]:
        """k and v of a layer of the unit of that key, [kv_heads, tokens, head_dim], on the host.

        They are the cache's: nobody writes them. Raises MemoryFault where there is no such KV, or
        no longer, or its file is damaged; LookupError for a layer that it does not have.
        """
        kept = self._kept(memory_id)
        self.use(memory_id)
        if not 0 <= layer < kept.file.layers:
            raise LookupError(f'no layer {layer}: this KV has {kept.file.layers}')
        if (found := self.cache.get(memory_id, layer)) is None:
            began = time.perf_counter()
            found = self._files.read(kept.file, layer)
            self.cache.put(memory_id, layer, found, time.perf_counter() - began)
            if self._kv.get(memory_id) is not kept:  # it went while it was read
                self.cache.drop(memory_id, kept.file.layers)
        return found

    def _kept(self, key: str) -> KeptUnit:
        kept = self._kv.get(key)
        if kept is None:
            raise MemoryFault(
                f'no KV of unit {key!r}: compute it from its segments', ErrorCode.NOT_FOUND
            )
        return kept

    def _write(self, draft: SegmentDraft, step: int) -> Change:
        old = self._records.segment(draft.id)
        new = Segment(draft.id, draft.kind, draft.text, old.version + 1 if old else 1, step)
        if old and (old.kind, old.text) == (new.kind, new.text):
            return Change(old, False)
        lost = self._records.units_of(draft.id)
        self._records.delete_units(lost)
        self._records.write(new, draft)
        return Change(new, True, tuple(lost))

    def _change(self, work: Callable[[], T], removes: Iterable[str] | None = None) -> T:
        """Does `work` in one transaction, which may be tried twice -> what it returns.

        removes: keys of units that it forgets. Without, the database does not become larger on a
        full disk, so that the space of the reserve comes back.
        """
        try:
            with self._records.change():
                return work()
        except DiskFull:
            self._forget(removes or ())
            with self._reserve.released(), self._records.change(grows=removes is not None):
                return work()

    def _forget(self, keys: Iterable[str]) -> None:
        """After the transaction that forgot them, or before it where the disk is full."""
        for key in keys:
            if (kept := self._kv.pop(key, None)) is not None:
                self._used.pop(key, None)
                self.cache.drop(key, kept.file.layers)
                self._files.remove([kept.file.number])

    def _make_room(self, size: int) -> None:
        """Forgets units, the least recently used first, until so many bytes of files fit."""
        if self._most is None:
            return
        excess = self._taken + size - self._most
        gone: list[str] = []
        for key in sorted(self._kv, key=lambda key: self._used.get(key, -1)):
            if excess <= 0:
                break
            excess -= self._kv[key].file.file_bytes
            gone.append(key)
        if gone:
            self.forget(*gone)
            log.info('%s: the KV of %d units is removed for newer KV', self.folder, len(gone))

    def _read_units(self) -> int:
        """Reads which KV there is, and sweeps files without a record -> how many."""
        records, used = dict(self._records.units()), self._files.used()
        numbers = {kept.file.number for kept in records.values()}
        self._next = max(numbers, default=0) + 1
        there = [key for key, kept in records.items() if kept.file.number in used]
        self._kv = {key: records[key] for key in there}
        self._largest = max((records[key].file.file_bytes for key in there), default=0)
        self.use(*sorted(there, key=lambda key: used[records[key].file.number]))
        return self._files.sweep(numbers)

    def _agree(self, fingerprint: str, renew: bool) -> None:
        found = self._records.fact('fingerprint')
        if found == fingerprint:
            return
        if found is not None and not renew:
            raise MemoryFault(
                f'{self.folder} holds KV of the model {found}, this is {fingerprint}: start what '
                'made it, choose another folder, or renew it, which keeps its text alone',
                ErrorCode.MISMATCH,
            )
        self.forget(*(key for key, _ in self._records.units()))
        self.set_fact('fingerprint', fingerprint)


def refuse_twice(ids: Iterable[str]) -> None:
    """Raises MemoryFault for an id that comes twice."""
    known = set()
    for id in ids:
        if id in known:
            raise MemoryFault(f'segment {id!r} comes twice in one change: which holds?')
        known.add(id)
