"""Buckets: the sizes that there is a graph for.

Knows numbers only. A batch is padded up to the next size; one beyond the largest is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTHS = 16  # of a prefix
ALIGNED = 8  # tokens, that the length of a prefix or a query is a multiple of, but for the longest


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4 ... and `most`."""
    return (*(1 << i for i in range((most - 1).bit_length())), most)


def multiples(most: int, step: int) -> tuple[int, ...]:
    """step, 2 step ... up to the first that holds `most`."""
    return tuple(range(step, most + step, step))


def prefixes(longest: int) -> tuple[int, ...]:
    """Tokens of a prefix: about `LENGTHS` sizes up to the longest."""
    step = -(-longest // (LENGTHS * ALIGNED)) * ALIGNED
    return (*multiples(longest, step)[:-1], longest)


def queries(longest: int) -> tuple[int, ...]:
    """Tokens of a query."""
    return (*multiples(longest, ALIGNED)[:-1], longest)


def smallest(sizes: Sequence[int], needed: int, what: str, remedy: str) -> int:
    """The smallest of ascending sizes that holds so many.

    Raises ValueError with what to do if none does.
    """
    for size in sizes:
        if size >= needed:
            return size
    raise ValueError(f'{needed} {what} do not fit into {sizes[-1]}: {remedy}')
