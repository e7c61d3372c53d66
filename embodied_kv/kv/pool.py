"""Whatever holds memory for KV, behind one interface: how much, and what could be given up.

Knows bytes and seconds. Does not know what lies in a pool, nor who decides what has to go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Evictable:
    """Something that a pool could do without now.

    bytes: what its end frees of the `bytes_used` of all pools together, if nothing else happens
    before. cost: s to make it again, as last measured; 0: not known. evict: ends it and returns
    the bytes that it freed; where it is gone meanwhile, or in use, it returns 0 and touches
    nothing. Any thread may call it.
    """

    bytes: int
    cost: float
    evict: Callable[[], int]


class Pool(Protocol):
    """Memory for KV. Any thread may ask.

    name: for the user. bytes: held of the machine. bytes_used: of these, in use.
    """

    name: str

    @property
    def bytes(self) -> int: ...

    @property
    def bytes_used(self) -> int: ...

    def evictable(self) -> list[Evictable]:
        """All that could go now; nothing of it is read, written or waited for by anybody."""

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law."""
