"""A memory: what is known, how it is grouped, and what of it a question needs.

Knows the store, the encoder and the groups, and keeps them in step. Does not compute KV: it says
which units there are, and which of them the store has no KV of.

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
from embodied_kv.memory.files import DiskFull
from embodied_kv.memory.groups import Grouping, Groups, Transition, retrieve
from embodied_kv.memory.records import SegmentDraft
from embodied_kv.memory.segment import MemoryFault, Segment, Unit
from embodied_kv.memory.sentence_log import SentenceLog
from embodied_kv.memory.store import Change, MemoryStore, refuse_twice

log = logging.getLogger(__name__)

REMOVALS = 'removals'  # the fact that says it


class Memory:
    """Over an open store, which stays the caller's.

    count: tokens of a text, as the model will see it. longest: tokens that a segment may have.
    Where the store was filled with another encoder, every text is embedded anew. Any thread may
    call any method. log: all sentences as bytes, which capsules copy.
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
        self._removals: dict[int, int] = {}  # group: step of a removal from it
        self.log = SentenceLog()
        self._reopen()

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def sentences(self) -> dict[str, str]:
        """Text by id, after the last change; never waits for one that is being written."""
        return {id: segment.text for id, segment in self._segments.copy().items()}

    def upsert(self, *segments: tuple[str, str, str]) -> tuple[Change, ...]:
        """Adds or changes segments given as (id, kind, text), all or none of them.

        Raises MemoryFault for what is no segment or too long a one, and an id that comes twice.
        """
        with self._lock:
            new = [Segment(*fields) for fields in segments]
            refuse_twice(segment.id for segment in new)
            sizes = {segment.id: self._size(segment) for segment in new}
            known = [self._same(segment) for segment in new]
            texts = [s.text for s, same in zip(new, known, strict=True) if not same]
            meanings = iter(self.encoder.encode(texts))
            drafts = [
                SegmentDraft(s.id, s.kind, s.text, None if same else next(meanings))
                for s, same in zip(new, known, strict=True)
            ]
            with self._consistent():
                for draft in drafts:
                    if draft.embedding is not None:
                        size, step = sizes[draft.id], self.store.step
                        self.groups.put(draft.id, draft.embedding, size, step)
                changes = self.store.upsert(*drafts, groups=self.groups.moved)
            self.groups.moved.clear()
            changed = {c.segment.id: c.segment for c in changes if c.changed}
            self._segments.update(changed)  # at once: `sentences` takes no lock
            self.log.put({id: segment.text for id, segment in changed.items()})
            return changes

    def remove(self, id: str) -> Change:
        """Raises MemoryFault if there is no such segment."""
        with self._lock:
            self.store.get(id)
            removals = self._with_removal(self.groups.of(id).number)
            fact = json.dumps(list(removals.items()))
            change = self.store.remove(id, {REMOVALS: fact})
            self._removals = removals
            del self._segments[id]
            self.log.put({id: None})
            self.groups.remove(id, self.store.step)
            return change

    def advance(self, steps: int = 1) -> tuple[Transition, ...]:
        """The world went on: groups that were left alone long enough turn static."""
        with self._lock:
            with self._consistent():
                transitions = self.groups.advance(self.store.step + steps)
                self.store.advance(steps, self.groups.moved)
            self.groups.moved.clear()
            return transitions

    def units(self) -> tuple[Unit, ...]:
        """All that there is, static groups first."""
        with self._lock:
            return tuple(self._unit(ids) for ids in self.groups.units())

    def retrieve(
        self, question: str, tokens: int, segments: int | None = None
    ) -> tuple[Unit, ...]:
        """What is nearest in meaning to a question, as `retrieve.retrieve`."""
        with self._lock:
            (query,) = self.encoder.encode([question])
            found = retrieve(self.groups, query, tokens, segments)
            units = tuple(self._unit(f.ids, f.score) for f in found)
            for unit in units:
                self.store.use(unit.key, *(Unit((s,)).key for s in unit.segments))
            return units

    def nearest(self, question: str) -> list[tuple[Segment, float]]:
        """All segments with their similarity to a question, the most similar first."""
        with self._lock:
            (query,) = self.encoder.encode([question])
            found = self.groups.vectors.nearest(query)
            return [(self._segments[id], score) for id, score in found]

    def missing(self, units: Iterable[Unit]) -> tuple[Unit, ...]:
        """Those whose KV has to be computed."""
        return tuple(unit for unit in units if unit.key not in self.store)

    def _unit(self, ids: tuple[str, ...], score: float = 0.0) -> Unit:
        segments = tuple(self._segments[id] for id in ids)
        return Unit(segments, self.groups.of(ids[0]).number, score)

    def _same(self, segment: Segment) -> bool:
        old = self._segments.get(segment.id)
        return old is not None and (old.kind, old.text) == (segment.kind, segment.text)

    def _size(self, segment: Segment) -> int:
        size = self._count(segment.text)
        if size > self._longest:
            raise MemoryFault(
                f'segment {segment.id!r} has {size} tokens, one may have {self._longest}: say it '
                'shorter, or in several segments'
            )
        return size

    def _with_removal(self, group: int) -> dict[int, int]:
        """When groups lost a member, for none of the others tells; also this one, now."""
        old = self.store.step - self.groups.grouping.stable_steps
        removals = self._removals | {group: self.store.step}
        return {n: step for n, step in removals.items() if step > old}

    @contextmanager
    def _consistent(self) -> Iterator[None]:
        """Reads the groups again from the store if a change fails that they took already."""
        try:
            yield
        except BaseException:
            counts, history = self.groups.counts, self.groups.history
            self._read()
            self.groups.counts, self.groups.history = counts, history
            raise

    def _reopen(self) -> None:
        fresh = self.store.fact('encoder') != self.encoder.name
        meanings = self._read(fresh)
        try:
            if fresh or meanings:
                self.store.embed(self.encoder.name, meanings)
            if self.groups.moved:
                self.store.set_groups(self.groups.moved)
                self.groups.moved.clear()
        except DiskFull as fault:  # the next start embeds again; groups go with the next change
            log.warning('the memory is opened, and what was missing is not stored: %s', fault)

    def _read(self, fresh: bool = False) -> dict[str, np.ndarray]:
        """Reads segments and groups -> embeddings that the store lacks; fresh: of all."""
        records = self.store.segment_records()
        bare = [f.segment for f in records if fresh or f.embedding is None]
        vectors = self.encoder.encode([segment.text for segment in bare])
        meanings = dict(zip((segment.id for segment in bare), vectors, strict=True))
        groups = Groups(self.encoder.width, self.groups.grouping)
        segments, unplaced = {}, []
        for f in records:
            segment, id = f.segment, f.segment.id
            segments[id] = segment
            meaning = meanings.get(id, f.embedding)
            assert meaning is not None  # those without were encoded
            if f.group is None:
                unplaced.append((segment, meaning))
            else:
                groups.restore(id, meaning, self._count(segment.text), segment.step, f.group)
        removals = {n: step for n, step in json.loads(self.store.fact(REMOVALS) or '[]')}
        groups.settle(self.store.step, removals)
        for segment, meaning in unplaced:
            groups.put(segment.id, meaning, self._count(segment.text), self.store.step)
        self.groups, self._segments, self._removals = groups, segments, removals
        self.log = SentenceLog(self.sentences)
        return meanings
