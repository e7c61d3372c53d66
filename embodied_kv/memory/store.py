"""Persistent memory: segments in a database, and their KV in files in the same folder.

A file of KV has its final name and is on the disk before the transaction that names it, and is
removed after the transaction that forgets it. A crash therefore leaves every committed record with
its file, and at worst files without a record, which are removed when the folder is opened. A
folder is open in one process at a time, by a lock that ends with the process.

On a full disk a change is retried with the space of a reserve file: removals always succeed, and
additions succeed if the database has free pages. KV files are then removed before their records; a
record without its file counts as no KV.

Source: KEEP, section 5: `load_memory`, with a table of the location of each memory.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_kv import storage
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.budget import KvBudget
from embodied_kv.memory.cache import HostCache
from embodied_kv.memory.files import DiskFullError, KvFiles, explained
from embodied_kv.memory.records import KeptUnit, Records, SegmentRecord
from embodied_kv.memory.segment import RobotMemoryError, Segment, UnitKv

log = logging.getLogger(__name__)

DATABASE, LOCK, RESERVE = 'memory.sqlite', 'memory.lock', 'memory.reserve'
RESERVED = 2**20  # bytes, for the journal of one change
PIECE = 16  # units that one change forgets, so that its journal fits
HEADER = 256  # maximum number of bytes of a KV file before the tensor


@dataclass(frozen=True)
class Change:
    """The result of an upsert or a removal, with the keys of the units that lost their KV."""

    segment: Segment
    changed: bool
    lost: tuple[str, ...] = ()


class MemoryStore(AbstractContextManager):
    """The memory in one folder, which is created if needed. Thread-safe.

    `load_memory` never waits for a change that is being written.

    Args:
        fingerprint: Fingerprint of the model whose KV the store holds.
        cache_bytes: Maximum size of loaded layers in host memory.
        renew: Discard KV of another model and keep the segments.
        kv_budget: The budget that loaded layers share.

    Raises:
        RobotMemoryError: The folder has KV of another model, is in use, or cannot be read or
            written.
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
                # The lock is a file, so that other code may lock the folder itself.
                lock = storage.locked(self.folder / LOCK, wait=False, file=True)
                if not opened.enter_context(lock):
                    raise RobotMemoryError(
                        f'{folder} is in use, possibly by another process; choose another folder',
                        ErrorCode.UNAVAILABLE,
                    )
            self._records = Records(self.folder / DATABASE)
            opened.callback(self._records.close)
            self._reserve = storage.Reserve(self.folder / RESERVE, RESERVED)
            self._kv: dict[str, KeptUnit] = {}
            self._used: dict[str, int] = {}  # the tick of the last use, by key
            self._ticks = count()
            self._most: int | None = None
            self._largest = 0  # bytes of a file, including files that were not kept
            self._agree(fingerprint, renew)
            self._next = 1
            self.swept = self._read_units()
            kv_budget.join(self.cache)
            opened.callback(kv_budget.leave, self.cache)
            self._opened = opened.pop_all()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder. No data is lost without this call."""
        with self._lock:
            self._opened.close()

    def limit(self, most: int | None) -> None:
        """Bound the bytes of all KV files (None: no bound); remove excess units in LRU order."""
        with self._lock:
            self._most = most
            self._make_room(0)

    @property
    def has_room(self) -> bool:
        """Return whether a unit as large as the largest one so far fits without a removal."""
        with self._lock:
            return self._most is None or self._taken + self._largest <= self._most

    @property
    def _taken(self) -> int:
        return sum(kept.file.file_bytes for kept in self._kv.values())

    @property
    def step(self) -> int:
        """Return the world step, 0 in a new folder."""
        return int(self.fact('step') or 0)

    def advance(self, steps: int = 1, groups: Mapping[str, int] | None = None) -> int:
        """Advance the world step, set the group of each id in `groups`, and return the step."""
        if steps < 0:
            raise ValueError(f'steps must be >= 0 (got {steps})')
        with self._lock:
            step, records = self.step + steps, self._records
            advance = partial(records.set_fact, 'step', str(step))
            self._change(advance, partial(records.set_groups, groups or {}))
            return step

    def fact(self, name: str) -> str | None:
        """Return the metadata value stored under `name`."""
        with self._lock:
            return self._records.fact(name)

    def set_fact(self, name: str, value: str) -> None:
        with self._lock:
            self._change(partial(self._records.set_fact, name, value))

    def upsert(
        self,
        *segments: Segment,
        embeddings: Mapping[str, np.ndarray] | None = None,
        groups: Mapping[str, int] | None = None,
    ) -> tuple[Change, ...]:
        """Add or change segments atomically, and set groups; embeddings and groups are by id.

        The stored segments get the current step and their next version. A segment with the kind
        and text of the stored one changes nothing. Raises RobotMemoryError for an id that occurs
        twice.
        """
        for id, times in Counter(segment.id for segment in segments).most_common(1):
            if times > 1:
                raise RobotMemoryError(f'ids of one change must be distinct (got {id!r} twice)')
        with self._lock:
            step, vectors = self.step, embeddings or {}
            writes = (partial(self._write, s, vectors.get(s.id), step) for s in segments)
            *changes, _ = self._change(*writes, partial(self._records.set_groups, groups or {}))
            self._forget([key for change in changes for key in change.lost])
            return tuple(changes)

    def remove(self, id: str, facts: Mapping[str, str] | None = None) -> Change:
        """Remove a segment and set metadata in the same transaction.

        Raises RobotMemoryError if the segment does not exist.
        """
        with self._lock:
            segment = self.get(id)
            records = self._records
            lost = records.units_of(id)
            deletes = partial(records.delete_units, lost), partial(records.delete, id)
            sets = (partial(records.set_fact, *fact) for fact in (facts or {}).items())
            self._change(*deletes, *sets, removes=lost)
            self._forget(lost)
            return Change(segment, True, tuple(lost))

    def get(self, id: str) -> Segment:
        """Return a segment. Raise RobotMemoryError if it does not exist."""
        with self._lock:
            segment = self._records.segment(id)
        if segment is None:
            raise RobotMemoryError(f'segment {id!r} does not exist', ErrorCode.NOT_FOUND)
        return segment

    def list(self) -> tuple[Segment, ...]:
        """Return all segments in order of arrival."""
        return tuple(record.segment for record in self.segment_records())

    def segment_records(self) -> tuple[SegmentRecord, ...]:
        """Return all segments with group and embedding, in order of arrival."""
        with self._lock:
            return tuple(self._records.segment_records())

    def embed(self, encoder: str, embeddings: Mapping[str, np.ndarray]) -> None:
        """Set embeddings by id, and the name of the encoder of all embeddings."""
        embed = partial(self._records.embed, embeddings)
        with self._lock:
            self._change(embed, partial(self._records.set_fact, 'encoder', encoder))

    def store_kv(self, *kvs: UnitKv) -> tuple[bool, ...]:
        """Store the KV of units, in place of older KV of the same keys.

        Returns False for each unit that is not stored, because one of its segments has changed or
        it does not fit the bound of all KV.
        """
        with self._lock:
            fits, size = [], 0
            for kv in kvs:
                more = kv.k.nbytes + kv.v.nbytes + HEADER
                fits.append(self._most is None or size + more <= self._most)
                size += more * fits[-1]
                self._largest = max(self._largest, more)
            self._make_room(size)
            good = iter(self._write_kv([kv for kv, fit in zip(kvs, fits, strict=True) if fit]))
            return tuple(fit and next(good) for fit in fits)

    def _write_kv(self, kvs: Sequence[UnitKv]) -> Sequence[bool]:
        made: list[KeptUnit] = []
        try:
            for kv in kvs:
                both = torch.stack([kv.k.detach().cpu(), kv.v.detach().cpu()], dim=1)
                made.append(KeptUnit(tuple(kv.lengths), self._files.write(self._next, both)))
                self._next += 1
            self._files.sync()
            pairs = list(zip(kvs, made, strict=True))
            write = self._records.write_unit
            current = self._change(*(partial(write, kv.unit, kept) for kv, kept in pairs))
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

    def forget_kv(self, *keys: str) -> None:
        """Remove the KV of these units, if there is any."""
        with self._lock:
            for at in range(0, len(keys), PIECE):
                piece = keys[at : at + PIECE]
                self._change(partial(self._records.delete_units, piece), removes=piece)
                self._forget(piece)

    def retain_kv(self, keys: Set[str]) -> None:
        """Remove all KV except that of these units."""
        self.forget_kv(*(key for key in self.keys() if key not in keys))

    def use(self, *keys: str) -> None:
        """Mark the KV of these units as used, for the LRU order."""
        for key in keys:
            if key in self._kv:
                self._used[key] = next(self._ticks)

    def __contains__(self, key: str) -> bool:
        """Return whether there is KV of a key."""
        return key in self._kv

    def keys(self) -> tuple[str, ...]:
        """Return the keys of all units with KV."""
        with self._lock:
            return tuple(self._kv)

    @property
    def bytes(self) -> int:
        """Return the size of all KV in files."""
        with self._lock:
            return sum(kept.file.bytes for kept in self._kv.values())

    def lengths(self, key: str) -> tuple[int, ...]:
        """Return the tokens of each segment of a unit. Raise RobotMemoryError if it has no KV."""
        return self._kept(key).lengths

    def load_memory(self, memory_id: str, layer: int) -> tuple[Tensor, Tensor]:
        """Return k and v of a layer of a unit, [kv_heads, tokens, head_dim], on the host.

        The tensors belong to the cache and must not be written. Raises RobotMemoryError if the KV
        does not exist or is not finite, or its file is damaged, and LookupError for an unknown
        layer.
        """
        kept = self._kept(memory_id)
        self.use(memory_id)
        if not 0 <= layer < kept.file.layers:
            raise LookupError(f'layer must be in [0, {kept.file.layers}) (got {layer})')
        if (found := self.cache.get(memory_id, layer)) is None:
            began = time.perf_counter()
            found = self._files.read(kept.file, layer)
            if not all(bool(part.isfinite().all()) for part in found):
                raise RobotMemoryError(
                    f'KV of unit {memory_id!r} must be finite (got NaN or infinity in layer '
                    f'{layer}); compute it again',
                    ErrorCode.DAMAGED,
                )
            self.cache.put(memory_id, layer, found, time.perf_counter() - began)
            if self._kv.get(memory_id) is not kept:  # removed while it was read
                self.cache.drop(memory_id)
        return found

    def _kept(self, key: str) -> KeptUnit:
        kept = self._kv.get(key)
        if kept is None:
            raise RobotMemoryError(
                f'KV of unit {key!r} does not exist; compute it from its segments',
                ErrorCode.NOT_FOUND,
            )
        return kept

    def _write(self, segment: Segment, embedding: np.ndarray | None, step: int) -> Change:
        old = self._records.segment(segment.id)
        if old and (old.kind, old.text) == (segment.kind, segment.text):
            return Change(old, False)
        new = replace(segment, version=old.version + 1 if old else 1, step=step)
        lost = self._records.units_of(segment.id)
        self._records.delete_units(lost)
        self._records.write(new, embedding)
        return Change(new, True, tuple(lost))

    def _change(
        self, *works: Callable[[], Any], removes: Iterable[str] | None = None
    ) -> tuple[Any, ...]:
        """Run all `works` in one transaction, possibly twice, and return their results.

        `removes` has the keys of the units that it forgets. Without it the database may not grow
        on a full disk, so that the reserve can be allocated again.
        """
        try:
            with self._records.change():
                return tuple(work() for work in works)
        except DiskFullError:
            self._forget(removes or ())
            with self._reserve.released(), self._records.change(grows=removes is not None):
                return tuple(work() for work in works)

    def _forget(self, keys: Iterable[str]) -> None:
        """Remove files, after the transaction, or before it on a full disk."""
        for key in keys:
            if (kept := self._kv.pop(key, None)) is not None:
                self._used.pop(key, None)
                self.cache.drop(key)
                self._files.remove([kept.file.number])

    def _make_room(self, size: int) -> None:
        """Forget units in LRU order until that many bytes of files fit."""
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
            self.forget_kv(*gone)
            log.info('%s: KV of %d units was removed to make room', self.folder, len(gone))

    def _read_units(self) -> int:
        """Read the records of KV, remove files without a record, and return their number."""
        records, used = dict(self._records.units()), self._files.used()
        numbers = {kept.file.number for kept in records.values()}
        self._next = max(numbers, default=0) + 1
        self._kv = {key: kept for key, kept in records.items() if kept.file.number in used}
        self._largest = max((kept.file.file_bytes for kept in self._kv.values()), default=0)
        self.use(*sorted(self._kv, key=lambda key: used[records[key].file.number]))
        return self._files.sweep(numbers)

    def _agree(self, fingerprint: str, renew: bool) -> None:
        found = self._records.fact('fingerprint')
        if found == fingerprint:
            return
        if found is not None and not renew:
            raise RobotMemoryError(
                f'{self.folder} must hold KV of the model {fingerprint} (got {found}); choose '
                'another folder, or set discard_foreign_kv, which keeps the segments',
                ErrorCode.MISMATCH,
            )
        self.forget_kv(*(key for key, _ in self._records.units()))
        self.set_fact('fingerprint', fingerprint)
