"""How a hop of importance goes from segment to segment: by name.

Knows names. Does not know attention.

Source: KEEP, section 4.2 (directed) and figure 6, which draws connections without a direction.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Propagation:
    """How a hop reads attention between segments.

    diagonal: what a segment attends to in itself counts. symmetric: attention counts in both
    directions, each segment's to itself left out. accumulated: a hop adds to the scores instead of
    replacing them (the name `accumulated` is this and symmetric).
    """

    diagonal: bool = False
    symmetric: bool = False
    accumulated: bool = False


PROPAGATIONS = dict(
    directed=Propagation(),
    diagonal=Propagation(diagonal=True),
    symmetric=Propagation(symmetric=True),
    accumulated=Propagation(symmetric=True, accumulated=True),
)


def named_propagation(name: str) -> Propagation:
    """Raises ValueError that lists the names."""
    if name not in PROPAGATIONS:
        raise ValueError(f'no propagation {name!r}; there are: {", ".join(PROPAGATIONS)}')
    return PROPAGATIONS[name]
