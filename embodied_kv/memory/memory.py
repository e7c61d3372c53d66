"""A memory: segments, their groups, and retrieval.

It keeps store, encoder and groups consistent. It does not compute KV, but states which units exist
and which of them have no KV.

Source: KEEP, section 4.1.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np

from embodied_kv.memory.encoder import Encoder
from embodied_kv.memory.files import DiskFullError
from embodied_kv.memory.groups import Grouping, Groups, Transition, retrieve
from embodied_kv.memory.segment import RobotMemoryError, Segment, Unit
from embodied_kv.memory.sentence_log import SentenceLog
from embodied_kv.memory.store import Change, MemoryStore

log = logging.getLogger(__name__)

REMOVALS = 'removals'  # name of the metadata: pairs of a group and the step of a removal


class Memory:
    """Segments and groups over an open store, which the caller closes. Thread-safe.

    If the store was filled with another encoder, all texts are embedded again. `count` returns the
    number of tokens of a text, and `longest` bounds that of a segment. `log` has all texts as
    bytes, which capsules copy.
    """

    def __init__(
        self,
        store: MemoryStore,
        encoder: Encoder,
        count: Callable[[str], int],
        longest: int,
        grouping: Grouping | None = None,
    ) -> None:
        self.store, self.encoder = store, encoder
        self.groups = Groups(encoder.width, grouping)
        self._count, self._longest, self._lock = count, longest, RLock()
        self._segments: dict[str, Segment] = {}
        self._removals: dict[int, int] = {}  # step of the last removal by group
        self.log = SentenceLog()
        self._reopen()

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def sentences(self) -> dict[str, str]:
        """Return text by id after the last change, without waiting for a change in progress."""
        return {id: segment.text for id, segment in self._segments.copy().items()}

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Return all segments in order of arrival."""
        return tuple(self._segments.copy().values())

    def upsert(self, *segments: tuple[str, str, str]) -> tuple[Change, ...]:
        """Add or change segments given as (id, kind, text), atomically.

        Raises RobotMemoryError for an invalid or too long segment, and for an id that occurs
        twice.
        """
        with self._lock:
            new = [Segment(*fields) for fields in segments]
            sizes = {segment.id: self._size(segment) for segment in new}
            stored = {(s.id, s.kind, s.text) for s in map(self._segments.get, sizes) if s}
            other = [s for s in new if (s.id, s.kind, s.text) not in stored]
            vectors = self.encoder.encode([segment.text for segment in other])
            embeddings = dict(zip((segment.id for segment in other), vectors, strict=True))
            with self._consistent():
                for id, embedding in embeddings.items():
                    self.groups.put(id, embedding, sizes[id], self.store.step)
                changes = self.store.upsert(*new, embeddings=embeddings, groups=self.groups.moved)
            self.groups.moved.clear()
            changed = {c.segment.id: c.segment for c in changes if c.changed}
            self._segments.update(changed)  # atomic: `sentences` takes no lock
            self.log.put({id: segment.text for id, segment in changed.items()})
            return changes

    def remove(self, id: str) -> Change:
        """Remove a segment. Raise RobotMemoryError if it does not exist."""
        with self._lock:
            self.store.get(id)
            step, group = self.store.step, self.groups.of(id).number
            old = step - self.groups.grouping.stable_steps
            # The age of a group is that of its newest member, which a removal does not change.
            removals = {n: at for n, at in self._removals.items() if at > old} | {group: step}
            fact = json.dumps(list(removals.items()))
            change = self.store.remove(id, {REMOVALS: fact})
            self._removals = removals
            del self._segments[id]
            self.log.put({id: None})
            self.groups.remove(id, step)
            return change

    def advance(self, steps: int = 1) -> tuple[Transition, ...]:
        """Advance the world step, make unchanged groups static, and return their transitions."""
        with self._lock:
            with self._consistent():
                transitions = self.groups.advance(self.store.step + steps)
                self.store.advance(steps, self.groups.moved)
            self.groups.moved.clear()
            return transitions

    def units(self) -> tuple[Unit, ...]:
        """Return all units, static groups first."""
        with self._lock:
            return tuple(self._unit(ids) for ids in self.groups.units())

    def tokens(self) -> int:
        """Return the number of tokens of all segments."""
        with self._lock:
            return sum(self.groups.tokens(id) for ids in self.groups.units() for id in ids)

    def retrieve(
        self, question: str, tokens: int, segments: int | None = None
    ) -> tuple[Unit, ...]:
        """Return the units that are most similar to a question, see `groups.retrieve`."""
        with self._lock:
            (query,) = self.encoder.encode([question])
            found = retrieve(self.groups, query, tokens, segments)
            units = tuple(self._unit(f.ids, f.score) for f in found)
            for unit in units:
                self.store.use(unit.key, *(Unit((s,)).key for s in unit.segments))
            return units

    def nearest(self, question: str) -> list[tuple[Segment, float]]:
        """Return all segments with their similarity to a question, the most similar first."""
        with self._lock:
            (query,) = self.encoder.encode([question])
            found = self.groups.vectors.nearest(query)
            return [(self._segments[id], score) for id, score in found]

    def missing(self, units: Iterable[Unit]) -> tuple[Unit, ...]:
        """Return the units without KV."""
        return tuple(unit for unit in units if unit.key not in self.store)

    def _unit(self, ids: tuple[str, ...], score: float = 0.0) -> Unit:
        segments = tuple(self._segments[id] for id in ids)
        return Unit(segments, self.groups.of(ids[0]).number, score)

    def _size(self, segment: Segment) -> int:
        size = self._count(segment.text)
        if size > self._longest:
            raise RobotMemoryError(
                f'segment {segment.id!r} must have at most {self._longest} tokens (got {size}); '
                'shorten or split it'
            )
        return size

    @contextmanager
    def _consistent(self) -> Iterator[None]:
        """Restore the groups from the store if the block fails after it changed them."""
        try:
            yield
        except BaseException:
            counts = self.groups.counts
            self._read()
            self.groups.counts = counts
            raise

    def _reopen(self) -> None:
        fresh = self.store.fact('encoder') != self.encoder.name
        embeddings = self._read(fresh)
        try:
            if fresh or embeddings:
                self.store.embed(self.encoder.name, embeddings)
            if self.groups.moved:
                self.store.advance(0, self.groups.moved)
                self.groups.moved.clear()
        except DiskFullError as fault:
            # The next start embeds again; the next change stores groups.
            log.warning('memory opened without storing missing embeddings (reason: %s)', fault)

    def _read(self, fresh: bool = False) -> dict[str, np.ndarray]:
        """Read segments and groups, and return missing embeddings by id; `fresh`: all."""
        records = self.store.segment_records()
        bare = [f.segment for f in records if fresh or f.embedding is None]
        vectors = self.encoder.encode([segment.text for segment in bare])
        embeddings = dict(zip((segment.id for segment in bare), vectors, strict=True))
        groups = Groups(self.encoder.width, self.groups.grouping)
        segments, unplaced = {}, []
        for f in records:
            segment, id = f.segment, f.segment.id
            segments[id] = segment
            embedding = embeddings.get(id, f.embedding)
            assert embedding is not None  # those without were encoded
            if f.group is None:
                unplaced.append((segment, embedding))
            else:
                groups.restore(id, embedding, self._count(segment.text), segment.step, f.group)
        removals = {n: step for n, step in json.loads(self.store.fact(REMOVALS) or '[]')}
        groups.settle(self.store.step, removals)
        for segment, embedding in unplaced:
            groups.put(segment.id, embedding, self._count(segment.text), self.store.step)
        self.groups, self._segments, self._removals = groups, segments, removals
        self.log = SentenceLog(self.sentences)
        return embeddings
