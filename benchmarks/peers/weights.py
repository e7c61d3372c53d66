"""Copies the weights of the engine's model by name into LeRobot's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.common.command import BenchmarkError
from embodied_kv.model.keys import canonical, row_counts, sources
from embodied_kv.model.pi05 import Pi05


@torch.no_grad()
def copy(ours: Pi05, theirs: nn.Module) -> int:
    """Copy all weights of our model into LeRobot's, and return the number of parameters.

    Weights of LeRobot's model that nothing uses are left out. Raises BenchmarkError that names
    what is on one side alone, or of another shape.
    """
    pieces = dict(piece for name in ours.state_dict() for piece in _pieces(ours, name))
    there: dict[str | None, list[Tensor]] = {}
    for name, tensor in theirs.state_dict().items():
        there.setdefault(canonical(name), []).append(tensor)
    there.pop(None, None)  # unused weights
    if odd := sorted(pieces.keys() ^ there.keys()):
        raise BenchmarkError(f'weights that only one of the two models has: {", ".join(odd)}')
    for name, rows in pieces.items():
        for target in there[name]:  # several of one storage, where they are tied
            if target.shape != rows.shape:
                shapes = f'{list(target.shape)}, ours is {list(rows.shape)}'
                raise BenchmarkError(f"LeRobot's {name} is {shapes}")
            target.copy_(rows)
    return sum(rows.numel() for rows in pieces.values())


def _pieces(ours: Pi05, name: str) -> list[tuple[str, Tensor]]:
    """Return a parameter of ours as (name, rows) of LeRobot's parameters that form it."""
    names, parameter = sources(name, ours.config), ours.state_dict()[name]
    rows = row_counts(name, len(parameter), ours.config) if len(names) > 1 else [len(parameter)]
    return list(zip(names, parameter.split(rows), strict=True))
