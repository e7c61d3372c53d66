"""What was made for exact shapes, and for no other.

Knows kinds and two sizes. Does not know how to make what is missing: that costs a capture, which
nobody may pay unasked.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

T = TypeVar('T')


class MissingVariant(LookupError):
    """There is nothing of this shape; the message says which there are."""


class Shape(NamedTuple):
    """The kind of a computation and its sizes; one that plays no part is 0."""

    kind: str
    rows: int
    tokens: int = 0

    def __str__(self) -> str:
        return f'{self.kind} {self.rows}x{self.tokens}'


class Variants(Generic[T]):
    """At most `capacity` of them; none ever makes room for another."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._made: dict[Shape, T] = {}

    def __len__(self) -> int:
        return len(self._made)

    def items(self) -> list[tuple[Shape, T]]:
        """In the order in which they were added."""
        return list(self._made.items())

    def get(self, shape: Shape) -> T:
        """Of exactly this shape. Raises MissingVariant."""
        if shape not in self._made:
            alike = [str(other) for other in self._made if other.kind == shape.kind]
            raise MissingVariant(
                f'nothing was captured for {shape}; of its kind there are: '
                f'{", ".join(alike) or "none"}'
            )
        return self._made[shape]

    def add(self, shape: Shape, made: T) -> None:
        """Raises ValueError for a shape that is there, and where it is full."""
        if shape in self._made:
            raise ValueError(f'{shape} is there already')
        if len(self) == self.capacity:
            raise ValueError(f'there is no room for {shape}: {self.capacity} shapes at most')
        self._made[shape] = made
