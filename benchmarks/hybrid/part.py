"""A planner with recurrent state, as a part of a capsule.

Knows which tensors go in. Does not know when; what fits, the planner itself knows.
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
        """All that the planner keeps."""
        return self._planner.buffers.values()

    def freeze(self) -> FrozenPart:
        """Copies of `HybridPlanner.state`, and what they are states of."""
        state = {name: tensor.clone() for name, tensor in self._planner.state().items()}
        return FrozenPart(state, {'model': self._model, 'marks': self._planner.facts()})

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError for a state of another model, or for half a state."""
        if frozen.facts['model'] != self._model:
            raise CapsuleError('the capsule has the state of a planner with other weights')
        try:
            self._planner.check(frozen.tensors, frozen.facts['marks'])
        except ValueError as error:
            raise CapsuleError(f'the planner cannot go on from the capsule: {error}') from error

    def resume(self, frozen: FrozenPart) -> None:
        """The planner goes on from there, in place."""
        self._planner.put(frozen.tensors, frozen.facts['marks'])
