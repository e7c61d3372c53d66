"""How far ahead KV is loaded: the policies of figure 8 of KEEP, of which the node has `balanced`.

`separate` loads only the layer that is waited for, while nothing is computed; `next_layer` also
layer i + 1 during layer i; `balanced` then any later layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from embodied_kv.memory.loader import LoadQueue
from embodied_kv.memory.segment import check_choice

SEPARATE, NEXT_LAYER, BALANCED = POLICIES = ('separate', 'next_layer', 'balanced')


class PolicyQueue(LoadQueue):
    """The loads of a pass by any policy; raises ValueError for an unknown one."""

    def __init__(self, layers: int, units: Sequence[str], policy: str = BALANCED) -> None:
        check_choice('load_policy', policy, POLICIES)
        super().__init__(layers, units)
        self.policy = policy

    def next_load(self, layer: int, computing: bool) -> tuple[int, str] | None:
        last = layer + (computing and self.policy == NEXT_LAYER)
        waiting = self._waiting
        if self.policy != BALANCED and not any(waiting[layer + computing : last + 1]):
            return None
        return super().next_load(layer, computing)
