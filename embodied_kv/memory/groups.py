"""Groups of segments: what is computed together and retrieved together.

A group is static when no member changed within the last `stable_steps` steps (t in the paper, 10):
its KV is computed jointly, as one unit. Otherwise it is dynamic, and each member is a unit. A
change to a static group makes it dynamic at once.

Segments are clustered by the leader algorithm (Hartigan 1975, chapter 3) with the running mean as
leader: one pass in the order of arrival, which suits a memory that grows one segment at a time, is
deterministic, and never moves a segment that is placed, because that would invalidate KV. k-means
and hierarchical clustering would reshuffle with each arrival, and do not bound a group.

A new segment joins the nearest dynamic group that is similar enough and has room, or starts a
group. A static group is never joined by a segment that has just changed. Groups are reorganised
only as one turns static, because its KV is computed then in any case: members that drifted away or
no longer fit leave it as single groups, and the rest merges into the nearest static group that is
similar enough and has room.

Source: KEEP, section 4.1. The bounds are not from the paper.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile

import numpy as np

log = logging.getLogger(__name__)


class EmbeddingTable:
    """A float32 table of embeddings by id, in the order in which the ids were added.

    Removed rows stay until they are half of all.
    """

    def __init__(self, width: int) -> None:
        self._matrix = np.zeros((16, width), np.float32)
        self._ids: list[str | None] = []  # of each row; None: removed
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
        """Add or change an embedding. Raise ValueError unless it is [width] and finite."""
        vector = np.asarray(vector, np.float32)
        if vector.shape != (self.width,) or not np.isfinite(vector).all():
            raise ValueError(f'embedding must be {self.width} finite numbers (got {vector.shape})')
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
        """Return a number that is larger for ids that were added later."""
        return self._rows[id]

    def nearest(self, query: np.ndarray) -> list[tuple[str, float]]:
        """Return all ids with their inner products with the query, the largest first."""
        query = np.asarray(query, np.float32)
        if query.shape != (self.width,):
            raise ValueError(f'query must have {self.width} numbers (got {query.shape})')
        scores = self._matrix[: len(self._ids)] @ query
        order = np.argsort(-scores, kind='stable')
        found = zip(order.tolist(), scores[order].tolist(), strict=True)
        return [(self._ids[row], score) for row, score in found if self._ids[row] is not None]


@dataclass(frozen=True)
class Grouping:
    """The parameters of grouping."""

    stable_steps: int = 10  # steps without a change after which a group is static
    similarity: float = 0.5  # minimum cosine between a member and the mean of its group
    max_members: int = 8  # bound of a group of more than one segment, as `max_tokens` is
    max_tokens: int = 256  # bound of the tokens of its members
    reach: int = 256  # how many of the latest groups are searched

    def __post_init__(self) -> None:
        if min(self.stable_steps, self.max_members, self.max_tokens, self.reach) < 1:
            raise ValueError(f'steps, bounds and reach must be >= 1 (got {self})')
        if not -1 <= self.similarity <= 1:
            raise ValueError(f'similarity must be in [-1, 1] (got {self.similarity})')


@dataclass(frozen=True)
class Transition:
    """A change of the state of a group, its size at that time, and the group it merged into."""

    step: int
    group: int
    static: bool
    members: int
    tokens: int
    into: int | None = None


@dataclass(eq=False)
class Group:
    """Segments of similar meaning."""

    number: int  # the name of the group
    total: np.ndarray  # sum of the members' embeddings; `mean` is that with length 1, or 0
    changed: int  # step of the last change
    static: bool = False  # whether the members are computed jointly
    tokens: int = 0  # of all members
    members: dict[str, int] = field(default_factory=dict)  # tokens by id

    def __post_init__(self) -> None:
        self.shift(0.0)

    def shift(self, difference: np.ndarray | float) -> None:
        """Add to the sum of embeddings."""
        self.total = self.total + difference
        self.mean = self.total / (np.linalg.norm(self.total) or 1.0)


class Groups:
    """The groups of all segments; each segment is in one group. Not thread-safe.

    `counts` has the transitions ('static', 'dynamic'), groups that 'merged', members that 'left',
    and the tokens whose KV changes 'invalidated'. `moved` has the group of each id that was placed
    since the caller cleared it.
    """

    def __init__(self, width: int, grouping: Grouping | None = None) -> None:
        self.grouping, self.vectors = grouping or Grouping(), EmbeddingTable(width)
        self.step = 0
        self.counts: Counter[str] = Counter()
        self.moved: dict[str, int] = {}
        self._next = 1
        self._of: dict[str, Group] = {}
        self._groups: dict[int, Group] = {}
        self._dynamic: OrderedDict[int, Group] = OrderedDict()  # the longest unchanged first
        self._room = {static: OrderedDict[int, Group]() for static in (True, False)}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        """Iterate over the groups by number."""
        return iter(sorted(self._groups.values(), key=lambda group: group.number))

    def of(self, id: str) -> Group:
        """Return the group of a segment. Raise LookupError for an unknown id."""
        return self._of[id]

    def tokens(self, id: str) -> int:
        return self._of[id].members[id]

    def ids(self, group: Group) -> tuple[str, ...]:
        """Return the ids of its members, in order of arrival."""
        return tuple(sorted(group.members, key=self.vectors.order))

    def units(self) -> list[tuple[str, ...]]:
        """Return the ids of each unit: static groups by number, then segments by arrival."""
        static = [self.ids(group) for group in self if group.static]
        rest = (id for group in self._dynamic.values() for id in group.members)
        return static + [(id,) for id in sorted(rest, key=self.vectors.order)]

    def put(self, id: str, embedding: np.ndarray, tokens: int, step: int) -> int:
        """Add or change a segment, and return the number of tokens whose KV that invalidates."""
        self._at(step)
        if tokens < 0:
            raise ValueError(f'tokens of segment {id!r} must be >= 0 (got {tokens})')
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
        """Remove a segment, and return the number of tokens whose KV that invalidates.

        Raises LookupError for an unknown id.
        """
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
        """Set the world step, make unchanged groups static, and return their transitions."""
        self._at(step)
        oldest = step - self.grouping.stable_steps
        unchanged = takewhile(lambda group: group.changed <= oldest, self._dynamic.values())
        due = deque(sorted(unchanged, key=lambda group: group.number))
        done = []
        while due:
            group = due.popleft()
            due.extend(self._shed(group))
            done.append(self._freeze(group))
        return tuple(done)

    def restore(
        self, id: str, embedding: np.ndarray, tokens: int, changed: int, group: int
    ) -> None:
        """Place a segment where it was before a restart; call `settle` after the last one."""
        self.vectors[id] = embedding
        home = self._groups.get(group) or self._start(changed, group)
        self._join(home, id, tokens)
        home.changed = max(home.changed, changed)
        self.moved.pop(id, None)

    def settle(self, step: int, changed: Mapping[int, int] | None = None) -> None:
        """Derive the state of the restored groups from the age of their newest member.

        `changed` has later changes by group number, which no member records.
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
        """Raise AssertionError unless every invariant of the class holds."""
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
            raise ValueError(f'step must be >= {self.step} (got {step})')
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
        group.changed = self.step
        if group.static:
            group.static = False
            self._log(Transition(self.step, group.number, False, len(group.members), group.tokens))
        self._dynamic[group.number] = group
        self._dynamic.move_to_end(group.number)
        self._note_room(group)

    def _shed(self, group: Group) -> list[Group]:
        """Move members that drifted away or no longer fit into new single groups."""
        mean, new = group.mean, []
        for id in reversed(self.ids(group)):
            is_far = float(self.vectors[id] @ mean) < self.grouping.similarity
            if len(group.members) > 1 and (is_far or self._too_large(group)):
                single = self._start(group.changed)
                self._join(single, id, self._leave(group, id))
                new.append(single)
        self.counts['left'] += len(new)
        return new

    def _freeze(self, group: Group) -> Transition:
        size = members, tokens = len(group.members), group.tokens
        target = self._nearest(group.mean, tokens, members, static=True)
        if target is not None:
            for id in self.ids(group):
                self._join(target, id, self._leave(group, id))
            target.changed = max(target.changed, group.changed)
            self.counts['merged'] += 1
        else:
            group.static = True
            del self._dynamic[group.number]
            self._note_room(group)
        into = target.number if target else None
        return self._log(Transition(self.step, group.number, True, *size, into))

    def _nearest(self, mean: np.ndarray, tokens: int, members: int, static: bool) -> Group | None:
        """Return the most similar group with room; ties go to the oldest."""
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
        return not self._has_room(group, 0, 0)

    def _note_room(self, group: Group) -> None:
        self._room[not group.static].pop(group.number, None)
        self._room[group.static].pop(group.number, None)
        if self._has_room(group):
            self._room[group.static][group.number] = group

    def _log(self, transition: Transition) -> Transition:
        self.counts['static' if transition.static else 'dynamic'] += 1
        log.info('%s', transition)
        return transition


@dataclass(frozen=True)
class RetrievedUnit:
    """A unit that was retrieved: its segments in order, and the similarity of the best one."""

    ids: tuple[str, ...]
    group: int
    static: bool
    tokens: int
    score: float


def retrieve(
    groups: Groups, query: np.ndarray, tokens: int, segments: int | None = None
) -> tuple[RetrievedUnit, ...]:
    """Return the units that are most similar to a query embedding, within limits.

    A static group is returned as a whole and is as similar as its best member, so nothing is
    missed that retrieval by segment would find. Static groups come first, by number, then segments
    by arrival, whatever their similarity: prompts with the same memory share their start.

    All units together have at most `tokens` tokens; a unit that does not fit is skipped. No unit
    is added once `segments` segments are included.
    """
    if tokens < 0 or (segments is not None and segments < 0):
        raise ValueError(f'tokens and segments must be >= 0 (got {tokens} and {segments})')
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
    dynamic = (f for f in found if not f.static)
    return (*static, *sorted(dynamic, key=lambda f: groups.vectors.order(f.ids[0])))
