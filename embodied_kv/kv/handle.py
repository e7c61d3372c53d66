"""The name of a row, and the right to read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Stale(LookupError):
    """The handle's row cannot be read; the message says why."""


@dataclass(frozen=True)
class KvHandle:
    """Names a prefix row and the frame in it.

    It owns nothing: `KvManager.acquire` gives a Lease or Stale.

    process_id: 32 hex digits, of the process that owns the arena. layout: 16 hex digits, of the
    arena's layout. length: valid tokens. stamp: ns on the ROS clock. deadline: s on the owner's
    steady clock.
    """

    process_id: str
    row: int
    generation: int
    sequence: int
    length: int
    layout: str
    stamp: int
    deadline: float
    prefill_ms: float = 0.0
    robot: str = ''


class Lease:
    """The right to read a row until `release`. While one is out, nobody writes the row.

    compressed_row: the row of the compressed arena that is read in place of the prefix row, which
    is not held; -1: none.
    """

    def __init__(
        self, handle: KvHandle, give_back: Callable[[Lease], None], compressed_row: int = -1
    ) -> None:
        self.handle, self.compressed_row = handle, compressed_row
        self._give_back: Callable[[Lease], None] | None = give_back

    @property
    def is_copy(self) -> bool:
        """Whether a compressed copy is read: then no prefix row is held."""
        return self.compressed_row >= 0

    @property
    def row(self) -> int:
        """The prefix row that is read; -1 where a compressed row is."""
        return -1 if self.is_copy else self.handle.row

    def release(self) -> None:
        """Gives the row back; a second call does nothing."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
