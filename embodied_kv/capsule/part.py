"""What takes a share of a session into a capsule and out again.

Knows that a session is made of parts. Does not know what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from embodied_kv.capsule.capsule import Fact

Note = str | Callable[[], str] | None  # of a part that was resumed; the function runs afterwards


@dataclass(frozen=True, eq=False)
class FrozenPart:
    """A part at a boundary. tensors: copies, by names of the part's own. facts: plain values."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Fact = None


class Part(Protocol):
    """Freezes and resumes its share of a session. All of it runs between two steps.

    depth: 'planner' or 'actor': the shallowest re-entry at which it is resumed.
    """

    name: str
    depth: str

    def buffers(self) -> Iterable[Tensor | np.ndarray]:
        """The live memory that it answers for."""

    def freeze(self) -> FrozenPart:
        """Copies of all that the next step depends on."""

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError for what could not be resumed. Changes nothing."""

    def resume(self, frozen: FrozenPart) -> Note:
        """Goes on from there, with what was checked, instead of from where it stands.

        Returns what whoever asked for it has to know, in words; None or '' for nothing. Where the
        words take time, it returns a function that makes them on the thread of whoever asked.
        """
