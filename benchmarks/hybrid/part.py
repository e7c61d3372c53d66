"""A planner with recurrent state, as a part of a capsule.

Knows which tensors go in. Does not know when. The planner itself checks what fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from torch import Tensor

from benchmarks.hybrid.planner import HybridPlanner
from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.engine.fingerprint import weights_digest


class PlannerPart:
    """KV, recurrent and convolution states, checkpoint and logits: all or nothing."""

    name, depth = 'planner', 'planner'

    def __init__(self, planner: HybridPlanner) -> None:
        self._planner = planner
        self._model = {
            'weights': weights_digest(planner.model),
            'config': {name: str(value) for name, value in asdict(planner.config).items()},
        }

    def buffers(self) -> Iterable[Tensor]:
        """Return all buffers of the planner."""
        return self._planner.buffers.values()

    def freeze(self) -> FrozenPart:
        """Return copies of `HybridPlanner.state`, and the facts about them."""
        state = {name: tensor.clone() for name, tensor in self._planner.state().items()}
        return FrozenPart(state, {'model': self._model, 'marks': self._planner.facts()})

    def check_resumable(self, frozen: FrozenPart) -> None:
        """Raise CapsuleError for a state of another model, or for half a state."""
        if frozen.facts['model'] != self._model:
            raise CapsuleError('the capsule has the state of a planner with other weights')
        try:
            self._planner.check(frozen.tensors, frozen.facts['marks'])
        except ValueError as error:
            raise CapsuleError(f'the planner cannot go on from the capsule: {error}') from error

    def resume(self, frozen: FrozenPart) -> None:
        """Continue the planner from a frozen state, in place."""
        self._planner.put(frozen.tensors, frozen.facts['marks'])
