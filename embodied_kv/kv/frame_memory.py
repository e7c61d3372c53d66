"""Memory rows: KV of earlier frames of a robot, which its later chunks and texts read.

A memory row keeps some tokens of the row of an earlier frame, at that frame's own positions. The
memory rows of a robot stand in front of its newest frame: keys of the row of age i (0: the newest)
are rotated by -(i + 1) prefix lengths, which is exact (`memory.rotate`). So the policy
distinguishes frames by their positions, as it does words.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import dropwhile
from threading import RLock

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.budget import KvBudget, OverBudgetError
from embodied_kv.kv.handle import KvHandle
from embodied_kv.kv.pool import Evictable

# K [kv_heads, n, head_dim], distance in positions, layer -> the same keys at their new positions
Move = Callable[[Tensor, int, int], Tensor]
Closeness = Callable[[Sequence['MemoryRow']], Sequence[float]]


def memory_shift(age: int, prefix_tokens: int) -> int:
    """Return the distance by which keys of a memory row are moved.

    Args:
        age: 0 for the newest memory row of the robot.
        prefix_tokens: Length of the longest prefix of the policy.
    """
    return -(age + 1) * prefix_tokens


@dataclass(frozen=True, eq=False)
class RememberedFrame:
    """A frame that becomes a memory row.

    Attributes:
        handle, instruction, until, is_first, cost, pictures: As in `MemoryRow`.
        kept: Positions int64 [kv_heads, n] of each layer.
    """

    handle: KvHandle
    instruction: str
    until: str | None
    is_first: bool
    kept: Sequence[Tensor]
    cost: float = 0.0
    pictures: tuple[np.ndarray, ...] = ()

    @property
    def budgets(self) -> tuple[int, ...]:
        """Return the number of tokens of each layer."""
        return tuple(positions.shape[1] for positions in self.kept)

    def size(self, source: Arena) -> int:
        """Return the bytes of its memory row."""
        return 2 * sum(self.budgets) * source.k[0, 0, :, 0].nbytes

    def row(self, source: Arena, row: int) -> MemoryRow:
        """Return its memory row: copies of the tokens of a row of an arena."""
        heads = torch.arange(source.k.shape[2], device=source.device)[:, None]
        picked = [
            (k[row][heads, at], v[row][heads, at])
            for (k, v), at in zip(source.layers, self.kept, strict=True)
        ]
        k, v = (torch.cat(parts, 1) for parts in zip(*picked, strict=True))
        about = self.handle, self.instruction, self.until, self.is_first
        return MemoryRow(*about, k, v, self.budgets, self.cost, self.pictures)


@dataclass(frozen=True, eq=False)
class MemoryRow:
    """KV of an earlier frame.

    Attributes:
        handle: The frame; its row need not exist.
        instruction: The instruction in its prompt.
        until: The instruction of the frame after it; None if there is none yet.
        is_first: Whether it was the first frame of its robot.
        k: Keys of the tokens that were kept of all layers in order, [kv_heads, tokens, head_dim],
            at the positions of the frame; it is never written again.
        v: Their values.
        budgets: Number of tokens of each layer.
        cost: Time of the frame's prefill, s.
        pictures: Small pictures of its views, uint8 [height, width, 3].
        since: When it was kept, s on the steady clock.
    """

    handle: KvHandle
    instruction: str
    until: str | None
    is_first: bool
    k: Tensor
    v: Tensor
    budgets: tuple[int, ...]
    cost: float
    pictures: tuple[np.ndarray, ...] = ()
    since: float = field(default_factory=time.monotonic)

    @property
    def ends(self) -> bool:
        """Return whether it was the last frame with its instruction."""
        return self.until not in (None, self.instruction)

    @property
    def is_last(self) -> bool:
        """Return whether it was the last frame with its instruction, or the first of all."""
        return self.is_first or self.ends

    @property
    def bytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @cached_property
    def address(self) -> str:
        """Return the content address: equal for rows with equal keys and values."""
        digest = hashlib.blake2b(f'{self.k.dtype} {self.budgets}'.encode(), digest_size=16)
        for part in (self.k, self.v):
            digest.update(part.contiguous().cpu().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @property
    def layers(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return K and V by layer, [kv_heads, n, head_dim]."""
        keys, values = (torch.split(part, [*self.budgets], 1) for part in (self.k, self.v))
        return tuple(zip(keys, values, strict=True))


def chosen(
    rows: Sequence[MemoryRow], most: int, closeness: Closeness | None = None
) -> tuple[MemoryRow, ...]:
    """Return at most `most` memory rows of a robot, the newest first.

    Rows of the interval are left out first, the oldest of them first. Then rows are left out that
    are least close to the instruction, of equal ones the oldest. The newest row is chosen before
    all others.

    Args:
        rows: Memory rows, the newest first.
        most: Number of rows.
        closeness: Returns how close each row is to an instruction; None: all are equal.
    """
    if most < 1:
        return ()
    left = list(rows)
    extra = max(0, len(left) - most)
    interval = [row for row in left[1:] if not row.is_last][::-1][:extra]
    left = [row for row in left if row not in interval]
    if len(left) > most:
        close = closeness(left) if closeness else [0.0] * len(left)
        order = sorted(range(1, len(left)), key=lambda i: (-close[i], i))
        left = [left[i] for i in sorted([0, *order[: most - 1]])]
    return tuple(left)


def before_instruction(rows: Sequence[MemoryRow], instruction: str) -> tuple[MemoryRow, ...]:
    """Return the memory rows of frames before the present instruction, the newest first.

    The present frame has the results of the present instruction. Its other frames would make
    words such as "where it was" ambiguous: after a mistake they contain the wrong place, too.

    Args:
        rows: Memory rows, the newest first.
        instruction: The present instruction of their robot.
    """
    return tuple(dropwhile(lambda row: row.instruction == instruction and not row.ends, rows))


def _parted(rows: Sequence[MemoryRow]) -> tuple[Sequence[MemoryRow], tuple[MemoryRow, ...]]:
    """Return the rows of the newest instruction, and those of earlier ones."""
    earlier = before_instruction(rows, rows[0].instruction) if rows else ()
    return rows[: len(rows) - len(earlier)], earlier


def _with_one_less(rows: Sequence[MemoryRow]) -> tuple[MemoryRow, ...]:
    """Return the rows without one: of the present instruction, except the newest, or of all."""
    present, earlier = _parted(rows)
    if len(present) > 1:
        return (*chosen(present, len(present) - 1), *earlier)
    return chosen(rows, len(rows) - 1)


def limited(rows: Sequence[MemoryRow], most: int) -> tuple[MemoryRow, ...]:
    """Return at most `most` rows of the newest instruction, and as many of earlier ones.

    So rows that are not read yet displace none that are read.
    """
    present, earlier = _parted(rows)
    return (*chosen(present, most), *chosen(earlier, most))


class FrameMemory:
    """The memory rows of all robots. Any thread may call the methods.

    Args:
        most: Maximum number of memory rows of a robot that are kept of earlier instructions, and
            of the present one.
        prefix_tokens: Length of the longest prefix of the policy.
        move: Moves keys.
        kv_budget: The budget that the rows share.
        read: Maximum number of them that are read; None: all.
    """

    name = 'memory rows'

    def __init__(
        self,
        most: int,
        prefix_tokens: int,
        move: Move,
        kv_budget: KvBudget | None = None,
        read: int | None = None,
    ) -> None:
        self.most, self._prefix_tokens, self._move = most, prefix_tokens, move
        self._read = most if read is None else read
        self._kv_budget = kv_budget or KvBudget()
        self._lock = RLock()
        self._rows: dict[str, tuple[MemoryRow, ...]] = {}  # by robot, the newest first

    def rows(self, robot: str) -> tuple[MemoryRow, ...]:
        """Return the memory rows of a robot, the newest first."""
        with self._lock:
            return self._rows.get(robot, ())

    def keep(self, frame: RememberedFrame, source: Arena, row: int) -> bool:
        """Keep tokens of a row as the newest memory row of its robot; return False without room.

        Above the limit, some are removed (`limited`).

        Args:
            frame: What is known of the frame in the row.
            source: The arena of the row, which the caller holds.
            row: The row.
        """
        try:
            with self._kv_budget.claim(self, frame.size(source), frame.cost):
                self._add(frame.row(source, row))
        except OverBudgetError:
            return False
        return True

    def replace(self, robot: str, rows: Sequence[MemoryRow]) -> int:
        """Replace the memory rows of a robot by those of a capsule, the newest first.

        KV that another robot already has is not kept twice. Returns how many had room; which ones
        are left out is decided as in `keep`.
        """
        self.forget(robot)
        left = tuple(map(self._shared, limited(rows, self.most)))
        while left:
            size = self._missing(left)
            try:
                with self._kv_budget.claim(self, size, sum(r.cost for r in left)), self._lock:
                    if self._missing(left) <= size:  # no robot that shares them forgot them
                        self._rows[robot] = left
                        break
            except OverBudgetError:
                left = _with_one_less(left)
        return len(left)

    def follow(self, robot: str, instruction: str) -> None:
        """Set the next instruction of a robot, if its newest memory row had none yet."""
        with self._lock:
            rows = self._rows.get(robot, ())
            if rows and rows[0].until is None:
                rows = replace(rows[0], until=instruction), *rows[1:]
                self._rows[robot] = limited(rows, self.most)

    def _missing(self, rows: Sequence[MemoryRow]) -> int:
        """Return the bytes of the rows that no robot has."""
        held = self._holders()
        return sum({r.k.data_ptr(): r.bytes for r in rows if r.k.data_ptr() not in held}.values())

    def _shared(self, row: MemoryRow) -> MemoryRow:
        """Return the row with the tensors of an equal one that some robot has."""
        with self._lock:
            known = [other for rows in self._rows.values() for other in rows]
        if any(other.k.data_ptr() == row.k.data_ptr() for other in known):
            return row
        for other in known:
            alike = _frame(other) == _frame(row) and other.k.shape == row.k.shape
            if alike and other.address == row.address:
                return replace(row, k=other.k, v=other.v)
        return row

    def _holders(self) -> dict[int, list[tuple[str, MemoryRow]]]:
        """Return robots and their memory rows by the memory of the keys."""
        holders: dict[int, list[tuple[str, MemoryRow]]] = defaultdict(list)
        with self._lock:
            for robot, rows in self._rows.items():
                for row in rows:
                    holders[row.k.data_ptr()].append((robot, row))
        return holders

    def _add(self, row: MemoryRow) -> None:
        robot = row.handle.robot
        with self._lock:
            self._rows[robot] = limited([row, *self._rows.get(robot, ())], self.most)

    def placed(
        self, robot: str, instruction: str, closeness: Closeness | None = None
    ) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return K and V of the memory rows that a robot reads by layer, in front of its frame.

        [kv_heads, n, head_dim]; () without memory rows before its present instruction. closeness:
        of the rows to the instruction, for `chosen`.
        """
        rows = before_instruction(self.rows(robot), instruction)
        rows = chosen(rows, self._read, closeness)
        shifts = [memory_shift(age, self._prefix_tokens) for age in range(len(rows))]
        placed = []
        for layer, pairs in enumerate(zip(*(row.layers for row in rows), strict=True)):
            keys, values = zip(*pairs, strict=True)
            moved = [self._move(k, by, layer) for k, by in zip(keys, shifts, strict=True)]
            placed.append((torch.cat(moved, 1), torch.cat(values, 1)))
        return tuple(placed)

    def forget(self, robot: str, row: MemoryRow | None = None) -> int:
        """Remove a memory row of a robot, or all of them; return how many were removed."""
        with self._lock:
            known = self._rows.pop(robot, ())
            left = () if row is None else tuple(other for other in known if other is not row)
            if left:
                self._rows[robot] = left
            return len(known) - len(left)

    # ------------------------------------------------------------------ pool

    @property
    def bytes(self) -> int:
        return self.bytes_used

    @property
    def bytes_used(self) -> int:
        return sum(held[0][1].bytes for held in self._holders().values())

    @property
    def bytes_reserved(self) -> int:
        return self.bytes_used

    def evictable(self) -> list[Evictable]:
        """Offer all memory rows; the robots then act without them."""
        now, offers = time.monotonic(), []
        for held in self._holders().values():
            row, idle = held[0][1], now - max(row.since for _, row in held)
            offers.append(Evictable(row.bytes, row.cost, partial(self._evict, row.k), idle))
        return offers

    def _evict(self, keys: Tensor) -> int:
        """Remove the rows with these keys from all robots; return the bytes freed."""
        with self._lock:
            held = self._holders().get(keys.data_ptr(), [])
            return max((row.bytes for robot, row in held if self.forget(robot, row)), default=0)

    def check_integrity(self) -> None:
        """Raise AssertionError if a robot has more rows than `limited` permits, or no list."""
        with self._lock:
            for robot, rows in self._rows.items():
                assert 0 < len(rows) <= 2 * self.most, f'{robot!r} has {len(rows)} memory rows'


def _frame(row: MemoryRow) -> tuple[object, ...]:
    """Return what is equal for memory rows of the same frame."""
    handle = row.handle
    return handle.sequence, handle.stamp, handle.length, row.budgets
