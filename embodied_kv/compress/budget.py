"""How many tokens each layer keeps: VL-Cache's Algorithm 1, made to meet its total exactly."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from embodied_kv.compress.budget import check_keep_ratio


def layer_budgets(weights: Sequence[float], keep_ratio: float, n: int) -> list[int]:
    """Tokens that each layer keeps of n, shared by weight (Algorithm 1, lines 9 to 12).

    beta(l) = clip(weights(l) / sum of weights * keep_ratio * layers, 0.01, 1), the head means of
    the density being VL-Cache's weights. What clipping frees or takes is shared again by weight
    among the layers at no bound, and the tokens sum to `total_budget` exactly; ties go to the
    lower layer. Raises ValueError for keep_ratio outside [0.01, 1], n below 1 or weights that are
    no shares.
    """
    layers = len(weights)
    return apportion(weights, total_budget(keep_ratio, layers, n), floor_budget(n), n)


def floor_budget(n: int) -> int:
    """The fewest tokens of n that a layer keeps: 1 %, rounded up."""
    return -(-n // 100)


def total_budget(keep_ratio: float, layers: int, n: int) -> int:
    """Tokens of all layers: round(keep_ratio * layers * n), or the floor where that is more.

    A prefix whose share would be less than one token a layer is too short to compress and is kept
    whole: layers * n. Raises ValueError for keep_ratio outside [0.01, 1] or n below 1.
    """
    check_keep_ratio(keep_ratio)
    if layers < 1 or n < 1:
        raise ValueError(f'{layers} layers of {n} tokens: there is nothing to share a budget over')
    total = round(keep_ratio * layers * n)
    if total < layers:
        return layers * n
    return max(total, layers * floor_budget(n))


def apportion(weights: Sequence[float], total: int, floor: int, ceiling: int) -> list[int]:
    """Integers in [floor, ceiling], in proportion to the weights, that sum to total.

    Bounded largest-remainder apportionment: `water_fill`, then rounding down, then one more for
    the largest remainders, ties to the lower index. A larger weight never gets less. Raises
    ValueError if no such integers exist or a weight is negative or not finite.
    """
    count = len(weights)
    if not count * floor <= total <= count * ceiling:
        raise ValueError(
            f'{total} tokens cannot be shared over {count} with {floor} to {ceiling} each'
        )
    shares = water_fill(weights, total, floor, ceiling)
    whole = [int(share) for share in shares]
    by_remainder = sorted(range(count), key=lambda i: whole[i] - shares[i])
    for i in by_remainder[: total - sum(whole)]:
        whole[i] += 1
    return whole


def water_fill(weights: Sequence[float], total: int, floor: int, ceiling: int) -> list[Fraction]:
    """Exact shares in [floor, ceiling], c * weight at no bound for one c, that sum to total.

    All weights 0 count as equal ones.
    """
    try:
        exact = [Fraction(weight) for weight in weights]
    except (ValueError, OverflowError) as error:
        raise ValueError(f'weights {list(weights)} are not all finite') from error
    if min(exact) < 0:
        raise ValueError(f'weights {list(weights)} are not all 0 or more')
    low, high = Fraction(floor), Fraction(ceiling)
    shares = [low] * len(exact)
    free = set(range(len(exact)))
    left = Fraction(total)  # for the free ones
    while free:
        weight = sum(exact[i] for i in free)
        share = {i: left * (exact[i] / weight if weight else Fraction(1, len(free))) for i in free}
        clipped = {i: min(max(share[i], low), high) for i in free}
        over = sum(clipped.values()) - left
        if over > 0:  # the level has to sink: who is at the floor now stays there
            bound = {i for i in free if share[i] < low}
        elif over < 0:  # it has to rise: who is at the ceiling stays there
            bound = {i for i in free if share[i] > high}
        else:
            bound = free
        for i in bound:
            shares[i] = clipped[i]
        left -= sum(clipped[i] for i in bound)
        free = free - bound
    return shares
