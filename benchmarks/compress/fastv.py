"""FastV: vision tokens that the last query ignores leave the model after an early layer.

The pure part: who survives, and how many. Dropping them during prefill is the engine's.
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
        """Vision tokens that survive, so that the KV of all layers comes nearest to keep_ratio.

        The first layers keep all n = vision + text tokens and the later ones text + survivors, so
        the total is met to within half a token for each later layer. It cannot fall below
        drop_after * n + (layers - drop_after) * text: where keep_ratio asks for less nothing
        survives, and `budgets` says what is kept. Raises ValueError for keep_ratio outside [0.01,
        1] and if no layer is left after drop_after.
        """
        later = layers - self.drop_after
        if later < 1 or self.drop_after < 1:
            raise ValueError(f'drop_after {self.drop_after} does not split {layers} layers')
        n = vision + text
        left = total_budget(keep_ratio, layers, n) - self.drop_after * n  # for the later layers
        return min(max((2 * left + later) // (2 * later) - text, 0), vision)

    def budgets(self, keep_ratio: float, layers: int, vision: int, text: int) -> list[int]:
        """Tokens kept per layer."""
        later = text + self.kept(keep_ratio, layers, vision, text)
        return [vision + text] * self.drop_after + [later] * (layers - self.drop_after)

    def survivors(self, attention: Tensor, vision: Tensor, kept: int) -> Tensor:
        """Positions of the vision tokens that stay, ascending, int64 [kept].

        attention: float [heads, n], the last text query's in layer drop_after - 1 (counted from
        0), the mean of whose heads decides. vision: int64 [v], positions of vision tokens,
        ascending; ties go to the lower one.
        """
        order = attention.mean(0)[vision].sort(descending=True, stable=True).indices
        return vision[order[:kept].sort().values]
