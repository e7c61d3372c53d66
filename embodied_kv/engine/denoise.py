"""Flow matching from a shared prefix.

Noise at t = 1 becomes actions at t = 0 in a planned number of steps.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import SuffixRead
from embodied_kv.model.expert import Modulation
from embodied_kv.model.pi05 import Pi05


def noise(seed: int, robot: str, sequence: int, shape: tuple[int, int]) -> np.ndarray:
    """Standard normal float32 of `shape`, a function of seed, robot and frame alone."""
    key = np.array([seed, zlib.crc32(robot.encode()) << 32 | sequence & 0xFFFFFFFF], np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).standard_normal(shape, np.float32)


class Denoiser:
    """Euler steps x <- x + dt v(x, t), dt = -1/n, from prefix rows that are only read.

    Tables of every permitted step count are made once; planning fewer steps costs nothing then.
    """

    def __init__(self, model: Pi05, prefixes: Arena, step_counts: Sequence[int]) -> None:
        self._model, self._prefixes = model, prefixes
        self._tables: dict[int, list[Modulation]] = {n: self._table(n) for n in step_counts}

    def _table(self, steps: int) -> list[Modulation]:
        # Each time is made in double and rounded once, as in the reference.
        times = [1.0 + step * (-1.0 / steps) for step in range(steps)]
        return self._model.expert.modulation(torch.tensor(times, device=self._model.device))

    def run(self, rows: Sequence[int], x: Tensor, steps: int) -> Tensor:
        """Noise x -> normalised actions, both float32 [slots, horizon, padded_action_dim]."""
        cache = SuffixRead(self._prefixes, rows, x.shape[1])
        rope = self._model.suffix_rope(cache.start)
        for modulation in self._tables[steps]:
            x = x - self._model.velocity(x, modulation, cache, rope) / steps
        return x
