"""Which segments are computed together: groups by meaning, static or dynamic by age of change.

Knows ids, embeddings, token counts and steps. Does not know text, KV or retrieval.

A group is static when no member changed within the last t steps: its KV is computed jointly, as
one unit. Else it is dynamic, and each member is a unit. A change to a static group makes it
dynamic at once.

Clustering is the leader algorithm (Hartigan 1975, chapter 3), with the running mean as leader: one
pass in the order of arrival, so it works on a memory that grows one segment at a time, gives the
same groups for the same arrivals, and never moves a segment that is placed: moving one would
invalidate KV. k-means and hierarchies would reshuffle with each arrival, and do not bound a group.

When a segment is placed: a new one joins the nearest dynamic group that is similar enough and has
room, else it starts a group. A static group is never joined by a segment that has just changed.
When groups are made anew: only as one turns static, since its KV is computed then anyway. Members
that drifted away, or that no longer fit, leave it as groups of their own; then it merges into the
nearest static group that is similar enough and has room.

Source: KEEP, section 4.1.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np


class Vectors:
    """float32 [n, width], one row for each id. Removed rows stay until they are half of all."""

    def __init__(self, width: int) -> None:
        self._matrix = np.zeros((16, width), np.float32)
        self._ids: list[str | None] = []  # of each row; None: it was removed
        self._rows: dict[str, int] = {}

    @property
    def width(self) -> int:
        return self._matrix.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id: str) -> bool:
        return id in self._rows

    def __getitem__(self, id: str) -> np.ndarray:
        return self._matrix[self._rows[id]]

    def __setitem__(self, id: str, vector: np.ndarray) -> None:
        """Appends a new id, changes a known one. Raises ValueError for another width, or NaN."""
        vector = np.asarray(vector, np.float32)
        if vector.shape != (self.width,) or not np.isfinite(vector).all():
            raise ValueError(
                f'an embedding here is {self.width} finite numbers, not {vector.shape}'
            )
        if id not in self._rows:
            if len(self._ids) == len(self._matrix):
                self._matrix = np.concatenate([self._matrix, np.zeros_like(self._matrix)])
            self._rows[id] = len(self._ids)
            self._ids.append(id)
        self._matrix[self._rows[id]] = vector

    def __delitem__(self, id: str) -> None:
        self._ids[self._rows.pop(id)] = None
        if len(self._ids) > 2 * max(8, len(self._rows)):
            live = [row for row, name in enumerate(self._ids) if name is not None]
            self._matrix[: len(live)] = self._matrix[live]
            self._ids = [self._ids[row] for row in live]
            self._rows = {name: row for row, name in enumerate(self._ids) if name is not None}

    def order(self, id: str) -> int:
        """Grows with the time at which ids came."""
        return self._rows[id]

    def nearest(self, query: np.ndarray) -> list[tuple[str, float]]:
        """All ids with their inner products with the query, the largest first, ties by order."""
        query = np.asarray(query, np.float32)
        if query.shape != (self.width,):
            raise ValueError(f'a query has {self.width} numbers here, not {query.shape}')
        scores = self._matrix[: len(self._ids)] @ query
        order = np.argsort(-scores, kind='stable')
        found = zip(order.tolist(), scores[order].tolist(), strict=True)
        return [(self._ids[row], score) for row, score in found if self._ids[row] is not None]


@dataclass(frozen=True)
class Grouping:
    """How groups are made.

    stable_steps: t. similarity: least cosine with a group's mean that makes a segment belong to
    it. max_members, max_tokens: of a group of more than one. reach: how many groups with room, the
    latest ones, are searched, so that placing a segment costs the same in any memory.
    """

    stable_steps: int = 10
    similarity: float = 0.5
    max_members: int = 8
    max_tokens: int = 256
    reach: int = 256

    def __post_init__(self) -> None:
        if min(self.stable_steps, self.max_members, self.max_tokens, self.reach) < 1:
            raise ValueError(f'{self}: steps, bounds and reach start at 1')
        if not -1 <= self.similarity <= 1:
            raise ValueError(f'similarity {self.similarity} is no cosine')


@dataclass(frozen=True)
class Transition:
    """A group that changed its state, with its size then. into: the group that it merged into."""

    step: int
    group: int
    static: bool
    members: int
    tokens: int
    into: int | None = None


@dataclass(eq=False)
class Group:
    """Segments by meaning.

    changed: step of the last change to it. tokens: of all members. members: tokens by id. total:
    sum of their embeddings; mean: that with length 1, or 0.
    """

    number: int
    total: np.ndarray
    changed: int
    static: bool = False
    tokens: int = 0
    members: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shift(0.0)

    def shift(self, difference: np.ndarray | float) -> None:
        """Adds to the sum of embeddings."""
        self.total = self.total + difference
        self.mean = self.total / (np.linalg.norm(self.total) or 1.0)


log = logging.getLogger(__name__)


class Groups:
    """The groups of all segments that were put in.

    Every segment is in one group. Steps never go back. counts: of 'static', 'dynamic' (transitions
    into each), 'merged', 'left', and in tokens 'invalidated' (by changes) and 'rebuilt' (computed
    jointly, as groups turned static). Not for several threads at once.
    """

    def __init__(self, width: int, grouping: Grouping | None = None, history: int = 1024) -> None:
        self.grouping, self.vectors = grouping or Grouping(), Vectors(width)
        self.step = 0
        self.counts: Counter[str] = Counter()
        self.history: deque[Transition] = deque(maxlen=history)
        self.moved: dict[str, int] = {}  # id: its group, since somebody cleared this
        self._next = 1
        self._of: dict[str, Group] = {}
        self._groups: dict[int, Group] = {}
        self._dynamic: OrderedDict[int, Group] = OrderedDict()  # the longest unchanged first
        self._room = {static: OrderedDict[int, Group]() for static in (True, False)}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        """By their numbers."""
        return iter(sorted(self._groups.values(), key=lambda group: group.number))

    def of(self, id: str) -> Group:
        """Raises LookupError for an id that is not there."""
        return self._of[id]

    def tokens(self, id: str) -> int:
        return self._of[id].members[id]

    def ids(self, group: Group) -> tuple[str, ...]:
        """Of its members, in the order in which they came."""
        return tuple(sorted(group.members, key=self.vectors.order))

    def units(self) -> list[tuple[str, ...]]:
        """Ids of what is computed together, all of it; static groups first, then as they came."""
        static = [self.ids(group) for group in self if group.static]
        rest = (id for group in self._dynamic.values() for id in group.members)
        return static + [(id,) for id in sorted(rest, key=self.vectors.order)]

    def put(self, id: str, embedding: np.ndarray, tokens: int, step: int) -> int:
        """A new segment, or a changed one -> tokens whose KV that invalidates."""
        self._at(step)
        if tokens < 0:
            raise ValueError(f'segment {id!r} cannot have {tokens} tokens')
        group = self._of.get(id)
        if group is None:
            self.vectors[id] = embedding
            group = self._nearest(self.vectors[id], tokens, 1, static=False)
            group = self._start(step) if group is None else group
            self._join(group, id, tokens)
            self._touch(group)
            return 0
        lost = group.tokens if group.static else group.members[id]
        old = self.vectors[id].copy()
        self.vectors[id] = embedding
        group.shift(self.vectors[id] - old)
        group.tokens += tokens - group.members[id]
        group.members[id] = tokens
        self._touch(group)
        self.counts['invalidated'] += lost
        return lost

    def remove(self, id: str, step: int) -> int:
        """-> tokens whose KV that invalidates. Raises LookupError for an id that is not there."""
        self._at(step)
        group = self._of[id]
        lost = group.tokens if group.static else group.members[id]
        self._leave(group, id)
        del self._of[id], self.vectors[id]
        self.moved.pop(id, None)
        if group.members:
            self._touch(group)
        self.counts['invalidated'] += lost
        return lost

    def advance(self, step: int) -> tuple[Transition, ...]:
        """The world is at this step: groups that were left alone long enough turn static."""
        self._at(step)
        oldest = step - self.grouping.stable_steps
        due: deque[Group] = deque()
        for group in self._dynamic.values():
            if group.changed > oldest:
                break
            due.append(group)
        due = deque(sorted(due, key=lambda group: group.number))
        done = []
        while due:
            group = due.popleft()
            due.extend(self._shed(group))
            done.append(self._freeze(group))
        return tuple(done)

    def restore(
        self, id: str, embedding: np.ndarray, tokens: int, changed: int, group: int
    ) -> None:
        """Puts a segment where it was before a restart; `settle` follows after the last one."""
        self.vectors[id] = embedding
        home = self._groups.get(group) or self._start(changed, group)
        self._join(home, id, tokens)
        home.changed = max(home.changed, changed)
        self.moved.pop(id, None)

    def settle(self, step: int, changed: Mapping[int, int] | None = None) -> None:
        """After `restore`: groups are as old as their newest member, and static by that alone.

        changed: steps of later changes, by group: those that no member remembers.
        """
        self._at(step)
        self._dynamic.clear()
        for number, later in (changed or {}).items():
            if group := self._groups.get(number):
                group.changed = min(step, max(group.changed, later))
        for group in sorted(self, key=lambda group: group.changed):
            old = step - group.changed >= self.grouping.stable_steps
            group.static = old and (len(group.members) == 1 or not self._too_large(group))
            if not group.static:
                self._dynamic[group.number] = group
            self._note_room(group)

    def check_integrity(self) -> None:
        """Raises AssertionError unless every law of the class holds."""
        members = [id for group in self._groups.values() for id in group.members]
        assert sorted(members) == sorted(self._of) and len(members) == len(self.vectors)
        steps = [group.changed for group in self._dynamic.values()]
        assert steps == sorted(steps) and all(step <= self.step for step in steps)
        for number, group in self._groups.items():
            assert group.members and group.tokens == sum(group.members.values())
            assert all(self._of[id] is group for id in group.members)
            assert group.static == (number not in self._dynamic)
            single = len(group.members) == 1
            assert single or len(group.members) <= self.grouping.max_members
            assert single or not group.static or group.tokens <= self.grouping.max_tokens
            assert (number in self._room[group.static]) == self._has_room(group)
            assert number not in self._room[not group.static]

    def _at(self, step: int) -> None:
        if step < self.step:
            raise ValueError(f'step {step} is behind {self.step}: the world does not go back')
        self.step = step

    def _start(self, step: int, number: int | None = None) -> Group:
        number = self._next if number is None else number
        self._next = max(self._next, number + 1)
        group = Group(number, np.zeros(self.vectors.width, np.float32), step)
        self._groups[number] = self._dynamic[number] = group
        return group

    def _join(self, group: Group, id: str, tokens: int) -> None:
        group.members[id] = tokens
        group.tokens += tokens
        group.shift(self.vectors[id])
        self._of[id], self.moved[id] = group, group.number
        self._note_room(group)

    def _leave(self, group: Group, id: str) -> int:
        tokens = group.members.pop(id)
        group.tokens -= tokens
        group.shift(-self.vectors[id])
        if group.members:
            self._note_room(group)
        else:
            for table in (self._groups, self._dynamic, *self._room.values()):
                table.pop(group.number, None)
        return tokens

    def _touch(self, group: Group) -> None:
        """It changed now."""
        group.changed = self.step
        if group.static:
            group.static = False
            self._log(Transition(self.step, group.number, False, len(group.members), group.tokens))
        self._dynamic[group.number] = group
        self._dynamic.move_to_end(group.number)
        self._note_room(group)

    def _shed(self, group: Group) -> list[Group]:
        """Puts members that do not belong to it, or do not fit, into groups of their own."""
        mean, new = group.mean, []
        for id in reversed(self.ids(group)):
            strange = float(self.vectors[id] @ mean) < self.grouping.similarity
            if len(group.members) > 1 and (strange or self._too_large(group)):
                single = self._start(group.changed)
                self._join(single, id, self._leave(group, id))
                new.append(single)
        self.counts['left'] += len(new)
        return new

    def _freeze(self, group: Group) -> Transition:
        size = len(group.members), group.tokens
        target = self._nearest(group.mean, group.tokens, size[0], static=True)
        if target is not None:
            for id in self.ids(group):
                self._join(target, id, self._leave(group, id))
            target.changed = max(target.changed, group.changed)
            self.counts['merged'] += 1
        else:
            group.static = True
            del self._dynamic[group.number]
            self._note_room(group)
        joint = target or group
        if len(joint.members) > 1:
            self.counts['rebuilt'] += joint.tokens
        into = None if target is None else target.number
        return self._log(Transition(self.step, group.number, True, *size, into))

    def _nearest(self, mean: np.ndarray, tokens: int, members: int, static: bool) -> Group | None:
        """The most similar group of a state that has room for so much; ties to the oldest."""
        latest = islice(reversed(self._room[static].values()), self.grouping.reach)
        fit = sorted(
            (g for g in latest if self._has_room(g, tokens, members)), key=lambda g: g.number
        )
        if not fit:
            return None
        similar = np.stack([group.mean for group in fit]) @ mean
        best = int(similar.argmax())
        return fit[best] if similar[best] >= self.grouping.similarity else None

    def _has_room(self, group: Group, tokens: int = 1, members: int = 1) -> bool:
        bounds = self.grouping
        return (
            len(group.members) + members <= bounds.max_members
            and group.tokens + tokens <= bounds.max_tokens
        )

    def _too_large(self, group: Group) -> bool:
        bounds = self.grouping
        return len(group.members) > bounds.max_members or group.tokens > bounds.max_tokens

    def _note_room(self, group: Group) -> None:
        self._room[not group.static].pop(group.number, None)
        self._room[group.static].pop(group.number, None)
        if self._has_room(group):
            self._room[group.static][group.number] = group

    def _log(self, transition: Transition) -> Transition:
        self.counts['static' if transition.static else 'dynamic'] += 1
        self.history.append(transition)
        log.info('%s', transition)
        return transition


@dataclass(frozen=True)
class RetrievedUnit:
    """A unit in view. ids: its segments, in order. score: similarity of the best one."""

    ids: tuple[str, ...]
    group: int
    static: bool
    tokens: int
    score: float


def retrieve(
    groups: Groups, query: np.ndarray, tokens: int, segments: int | None = None
) -> tuple[RetrievedUnit, ...]:
    """The units that are most similar to a query embedding, within limits.

    tokens: all units together have no more. segments: no further unit is taken once so many
    segments are in view; a group that begins below comes whole. A static group is as similar as
    its best member, so nothing is missed that retrieval by segment would find. The most similar
    unit is taken first, of equals what came first; one that does not fit is passed over.

    Returned are static groups by number, then segments as they came, whatever their similarity: a
    prompt stays the same, from its start on, while the same memory is in view.
    """
    if tokens < 0 or segments is not None and segments < 0:
        raise ValueError(f'limits of {tokens} tokens and {segments} segments cannot be')
    wanted = len(groups.vectors) if segments is None else segments
    found, seen, taken = [], set(), 0
    for id, score in groups.vectors.nearest(query):
        if taken >= wanted or not tokens:
            break
        group = groups.of(id)
        if group.static and group.number in seen:
            continue
        seen.add(group.number)
        ids = groups.ids(group) if group.static else (id,)
        size = group.tokens if group.static else group.members[id]
        if size <= tokens:
            found.append(RetrievedUnit(ids, group.number, group.static, size, score))
            tokens -= size
            taken += len(ids)
    static = sorted((f for f in found if f.static), key=lambda f: f.group)
    dynamic = sorted(
        (f for f in found if not f.static), key=lambda f: groups.vectors.order(f.ids[0])
    )
    return (*static, *dynamic)
