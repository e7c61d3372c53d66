"""What a chunk went on from, in a capsule: its replay goes on from the same.

Knows guides and tensors. Does not know rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from embodied_kv.capsule import frozen_kv
from embodied_kv.capsule.part import FrozenPart
from embodied_kv.config import ModelConfig
from embodied_kv.types import Guide


def tensors(name: str, guide: Guide | None) -> dict[str, Tensor]:
    """One tensor [chunk, action_dim + 2]: the actions, their weights, and which are given."""
    if guide is None:
        return {}
    given = np.arange(len(guide.actions)) < guide.delay
    columns = np.column_stack([guide.actions, guide.weights, given])
    return {name: torch.from_numpy(columns.astype(np.float32))}


def check(frozen: FrozenPart, name: str, model: ModelConfig) -> None:
    """Raises CapsuleError where there is a guide that no chunk of the model could go on from."""
    if name in frozen.tensors:
        frozen_kv.check_tensor(frozen, name, model.chunk_size, model.action_dim + 2)


def thawed(frozen: FrozenPart, name: str) -> Guide | None:
    """The guide of that name, if there is one."""
    if name not in frozen.tensors:
        return None
    *_, weights, given = columns = frozen.tensors[name].cpu().numpy().T
    return Guide(columns[:-2].T, int(given.sum()), weights)
