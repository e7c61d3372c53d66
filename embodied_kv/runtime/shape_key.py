"""One exact number per shape.

Knows four named numbers and their bits. Does not know what they count.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

BITS = {'kind': 8, 'rows': 16, 'tail': 24, 'steps': 16}  # of 64, the highest first


@dataclass(frozen=True, order=True)
class ShapeKey:
    """A computation's kind and sizes in 64 bits. Different shapes have different keys.

    Raises ValueError for a value that is not of 64 bits.
    """

    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value < 1 << 64:
            raise ValueError(f'a shape key has 64 bits, not the value {self.value}')

    @classmethod
    def of(cls, *, kind: int, rows: int = 0, tail: int = 0, steps: int = 0) -> ShapeKey:
        """The key of four numbers; one that plays no part stays 0.

        Raises ValueError for a number that its bits cannot hold, TypeError for no integer.
        """
        value = 0
        fields = {'kind': kind, 'rows': rows, 'tail': tail, 'steps': steps}
        for name, bits in BITS.items():
            number = operator.index(fields[name])
            if not 0 <= number < 1 << bits:
                raise ValueError(f'{name} must be 0 ... {(1 << bits) - 1}, not {number}')
            value = value << bits | number
        return cls(value)

    @property
    def fields(self) -> dict[str, int]:
        """The numbers by name, as given to `of`."""
        fields, rest = {}, self.value
        for name, bits in reversed(BITS.items()):
            fields[name] = rest & (1 << bits) - 1
            rest >>= bits
        return {name: fields[name] for name in BITS}

    def __str__(self) -> str:
        return ' '.join(f'{name}={number}' for name, number in self.fields.items())
