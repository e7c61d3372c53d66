"""How few tokens are enough: ways of reuse by the share that each layer computes again.

Explored after the settled comparison (`judge`) had been read, to see why its order is what
it is; so its figures explain, and settle nothing. All shares are even over the layers beyond the
first, memory is as long as any, and problems have a hop or more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied_kv.bench.memory.judge_ask import Asking, problems
from embodied_kv.memory.keep import Keep
from embodied_kv.memory.reuse import CacheBlend, Reuse
from embodied_kv.memory.schedule import Schedule
from embodied_kv.train.evaluate.report import rate
from embodied_kv.train.judge.chains import LAYOUTS, SEGMENTS
from embodied_kv.train.judge.exam import HOPS, draw_cell
from embodied_kv.train.judge.file import JUDGE

SHARES = (0.04, 0.08, 0.16, 0.32)
PROBLEMS = 20  # of a layout, hops and a judge
SEED = 3_000_017


def ways(share: float) -> dict[str, Reuse]:
    """By name; all of them compute this share of memory in each layer beyond the first."""
    even = Schedule.linear(JUDGE.backbone.layers, share, share)
    return {
        'keep even': Keep(even),
        'keep even, no hops': Keep(even, hops=0),
        'keep even, restart': Keep(even, restart=0.5),
        'cacheblend': CacheBlend(share),
    }


def explore(
    askings: Sequence[Asking], count: int = PROBLEMS, shares: Sequence[float] = SHARES
) -> list[dict]:
    """A row per way and layout, a column per share: right answers, then the chain's tokens kept.

    In per cent; right answers with their Wilson interval.
    """
    rows = {(way, layout): {} for layout in LAYOUTS for way in ways(1.0)}
    for layout in LAYOUTS:
        asked = [
            (asking, problem)
            for number, asking in enumerate(askings)
            for hops in HOPS[1:]
            for problem in problems(draw_cell(count, SEED + number, SEGMENTS[1], layout, hops))
        ]
        for share in shares:
            for way, reuse in ways(share).items():
                replies = [asking.ask(problem, reuse) for asking, problem in asked]
                right = rate(sum(reply.right for reply in replies), len(replies))
                kept = float(np.mean([reply.kept[1:] for reply in replies]))
                low, high = (round(100 * right[end]) for end in ('low', 'high'))
                rows[way, layout] |= {
                    f'{share:.0%}': f'{100 * right["rate"]:.1f} [{low}, {high}]',
                    f'kept at {share:.0%}': round(100 * kept, 1),
                }
    n = len(askings) * count * len(HOPS[1:])
    return [dict(way=way, layout=layout, n=n) | row for (way, layout), row in rows.items()]
