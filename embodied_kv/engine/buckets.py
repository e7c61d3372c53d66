"""Buckets: the sizes that there is a graph for.

Knows numbers only. A batch is padded up to the next size; one beyond the largest is refused.
"""

from __future__ import annotations

from collections.abc import Sequence


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4 ... and `most`."""
    return (*(1 << i for i in range((most - 1).bit_length())), most)


def multiples(most: int, step: int) -> tuple[int, ...]:
    """step, 2 step ... up to the first that holds `most`."""
    return tuple(range(step, most + step, step))


def smallest(sizes: Sequence[int], needed: int, what: str, remedy: str) -> int:
    """The smallest of ascending sizes that holds so many.

    Raises ValueError with what to do if none does.
    """
    for size in sizes:
        if size >= needed:
            return size
    raise ValueError(f'{needed} {what} do not fit into {sizes[-1]}: {remedy}')
