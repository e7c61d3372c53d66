"""A capsule: everything that the next step of a session depends on, frozen at a boundary.

It knows names, tensors and plain facts. It does not know models, rows or streams: what a part of
the engine puts in, that part takes out again.

Source: Execution-State Capsules, section 3.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from torch import Tensor

Fact = None | bool | int | float | str | list['Fact'] | dict[str, 'Fact']  # what JSON can say


def facts_of(value: object) -> dict[str, Fact]:
    """The fields of a dataclass as facts: lists where it has tuples, dicts where dataclasses."""
    return {name: _fact(one) for name, one in asdict(value).items()}


def _fact(value: object) -> Fact:
    if isinstance(value, dict):
        return {name: _fact(one) for name, one in value.items()}
    return [_fact(one) for one in value] if isinstance(value, list | tuple) else value


class CapsuleError(ValueError):
    """Why a capsule cannot be made, kept or used; meant for the user."""


@dataclass(frozen=True)
class Boundary:
    """Where a session stood.

    session: its name. number: of its committed steps. stamp: ns, of its newest observation.
    """

    session: str
    number: int
    stamp: int


@dataclass(frozen=True, eq=False)
class Capsule:
    """tensors: by 'part/name', bytes as they were, on one device. facts: by part, plain values.

    fingerprint: of all that the tensors mean nothing without (weights, dtype, kernels, layout).
    created: s since the epoch.
    """

    name: str
    boundary: Boundary
    fingerprint: str
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Fact]
    created: float = field(default_factory=time.time)

    @property
    def bytes(self) -> int:
        """Of all its tensors."""
        return sum(t.nbytes for t in self.tensors.values())
