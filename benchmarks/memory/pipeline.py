"""A simulation of the pipeline of loads and computation from given times.

Knows the decisions of a `LoadQueue`, and arithmetic. It draws figure 8 of the paper for a model
that is not available, and predicts the gain of a load policy.

Source: KEEP, section 4.3 and figures 7 and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.memory.spans import COMPUTE, LOAD, Span, Timeline
from embodied_kv.memory.loader import LoadQueue


def simulate(
    pending: LoadQueue,
    compute: Sequence[float],
    load: Callable[[str, int], float],
    drops: Sequence[Iterable[str]],
    decided: float = 1.0,
) -> Timeline:
    """Return the timeline of one pass over the layers.

    compute: s per layer. load: s of (unit, layer). drops: per layer, the units that it is the
    first not to compute. decided: when, as a fraction of a layer's computation, it is known what
    the next layer drops; below 1 the choice runs in parallel with the rest of the layer.
    """
    spans: list[Span] = []
    ready = [0.0] * pending.layers  # time at which the loads of each layer are done
    free = now = 0.0  # time at which loading, and computation, become free

    def load_until(end: float, layer: int, computing: bool, start: float) -> None:
        nonlocal free
        while computing or pending.needs_load(layer):
            begin = max(free, start)
            if begin >= end or (item := pending.next_load(layer, computing)) is None:
                return
            at, unit = item
            free = begin + load(unit, at)
            ready[at] = max(ready[at], free)
            spans.append(Span(LOAD, at, begin, free, unit))

    for layer, seconds in enumerate(compute):
        if not layer:
            pending.drop(drops[0], 0)
        load_until(float('inf'), layer, False, now)
        start = max(now, ready[layer])
        now = start + seconds
        spans.append(Span(COMPUTE, layer, start, now))
        known = start + decided * seconds
        load_until(known, layer, True, start)
        if layer + 1 < pending.layers:
            pending.drop(drops[layer + 1], layer + 1)
        load_until(now, layer, True, known)
    return Timeline.of(spans)
