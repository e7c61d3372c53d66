"""What is to be loaded, and what of it comes next.

Knows layers, units and a policy. Does not know time, threads or tensors.

A unit that layer d does not compute again has no hidden state from there on, so its KV is needed
in layers d, d + 1, ... to the last: that is certain as soon as it is dropped, long before those
layers come. The next load is always of the lowest layer, there of the units in their given order,
and a policy says how far ahead it may be:
- `separate`: the layer that is waited for, while nothing is computed;
- `next_layer`: beside layer i, layer i + 1;
- `balanced`: then any later one.

Source: KEEP, section 4.3 and figure 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

POLICIES = ('separate', 'next_layer', 'balanced')


class Pending:
    """Loads of the units of one prompt, over the layers of one pass.

    units: keys in the order of the prompt. Raises ValueError for an unknown policy.
    """

    def __init__(self, layers: int, units: Sequence[str], policy: str = 'balanced') -> None:
        if policy not in POLICIES:
            raise ValueError(f'no policy {policy!r}; there are: {", ".join(POLICIES)}')
        self.layers, self.policy = layers, policy
        self._order = {unit: i for i, unit in enumerate(units)}
        if len(self._order) != len(units):
            raise ValueError('a unit comes twice in a prompt')
        self._from: dict[str, int] = {}
        self._waiting: list[dict[str, None]] = [{} for _ in range(layers)]

    def drop(self, units: Iterable[str], layer: int) -> None:
        """Layer `layer` and those after it do not compute these units again, but need their KV.

        Raises LookupError for a unit that is not in the prompt; one that was dropped stays so.
        """
        for unit in sorted(units, key=self._order.__getitem__):
            if unit not in self._from:
                self._from[unit] = layer
                for later in range(layer, self.layers):
                    self._waiting[later][unit] = None

    def dropped(self, unit: str) -> int | None:
        """The first layer that does not compute it; None while all do."""
        return self._from.get(unit)

    def left(self, layer: int) -> bool:
        """Whether a layer still needs something that `take` has not given out."""
        return bool(self._waiting[layer])

    def take(self, layer: int, computing: bool) -> tuple[int, str] | None:
        """What to load now, as (layer, unit), while `layer` is computed, or else waited for.

        None where nothing may be loaded at present. It counts as given out.
        """
        first = layer + 1 if computing else layer
        if self.policy == 'balanced':
            last = self.layers - 1
        else:
            last = min(first, self.layers - 1) if self.policy == 'next_layer' else layer
        for at in range(first, last + 1):
            if self._waiting[at]:
                unit = min(self._waiting[at], key=self._order.__getitem__)
                del self._waiting[at][unit]
                return at, unit
        return None
