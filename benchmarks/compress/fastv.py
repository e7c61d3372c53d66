"""FastV: vision tokens that the last query ignores leave the model after an early layer.

The selection rule: how many tokens survive, and which. `benchmarks.compress.early` drops the
others during a prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.compress.budget import total_budget


@dataclass(frozen=True)
class FastV:
    """Layers 0 .. drop_after - 1 see everything, later ones the survivors (Chen et al. 2024)."""

    drop_after: int = 2

    def kept(self, keep_ratio: float, layers: int, vision: int, text: int) -> int:
        """Return how many vision tokens survive, for a KV of all layers nearest to keep_ratio.

        The first layers keep all n = vision + text tokens and the later ones text + survivors, so
        the total is met to within half a token for each later layer. It cannot fall below
        drop_after * n + (layers - drop_after) * text: if keep_ratio asks for less, no vision token
        survives; `budgets` returns what is kept. Raises ValueError for keep_ratio outside [0.01,
        1] and if no layer is left after drop_after.
        """
        later = layers - self.drop_after
        if later < 1 or self.drop_after < 1:
            raise ValueError(f'drop_after {self.drop_after} does not split {layers} layers')
        n = vision + text
        left = total_budget(keep_ratio, layers, n) - self.drop_after * n  # for the later layers
        return min(max((2 * left + later) // (2 * later) - text, 0), vision)

    def budgets(self, keep_ratio: float, layers: int, vision: int, text: int) -> list[int]:
        """Return the tokens kept per layer."""
        later = text + self.kept(keep_ratio, layers, vision, text)
        return [vision + text] * self.drop_after + [later] * (layers - self.drop_after)

    def survivors(self, attention: Tensor, vision: Tensor, kept: int) -> Tensor:
        """Return the positions of the vision tokens that stay, ascending, int64 [kept].

        attention: float [heads, n] of the last text query in layer drop_after - 1 (counted from
        0); its mean over the heads decides. vision: int64 [v], positions of vision tokens,
        ascending; ties go to the lower one.
        """
        order = attention.mean(0)[vision].sort(descending=True, stable=True).indices
        return vision[order[:kept].sort().values]
