"""The number of tokens that each layer keeps, by VL-Cache's Algorithm 1 or another distribution.

Every distribution sums to `total_budget` exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

MIN_KEEP_RATIO = 0.01  # Algorithm 1 clips a layer's budget here
OWN = 'own'  # the distribution of the method
LEAST = 0.5  # lower bound of a bounded budget, as a share of an equal one
BETA = 20.0  # of a pyramid: the mean divided by the last layer's budget


def check_keep_ratio(keep_ratio: float) -> None:
    """Raise ValueError unless keep_ratio, the share of the cache to keep, is in [0.01, 1]."""
    if not MIN_KEEP_RATIO <= keep_ratio <= 1:
        raise ValueError(
            f'keep ratio must be in [{MIN_KEEP_RATIO}, 1] (got {keep_ratio}): a layer never keeps '
            'less than 1 % of its tokens; 1 keeps everything'
        )


def layer_budgets(weights: Sequence[float], keep_ratio: float, n: int) -> list[int]:
    """Return the tokens that each layer keeps of n, by weight (Algorithm 1, lines 9 to 12).

    beta(l) = clip(weights(l) / sum of weights * keep_ratio * layers, 0.01, 1); VL-Cache's weights
    are the head means of the density. Tokens that clipping frees or takes are redistributed by
    weight among the layers at no bound; ties go to the lower layer. Raises ValueError for
    keep_ratio outside [0.01, 1], n below 1 or invalid weights.
    """
    layers = len(weights)
    return apportion(weights, total_budget(keep_ratio, layers, n), floor_budget(n), n)


def floor_budget(n: int) -> int:
    """Return the fewest tokens of n that a layer keeps: 1 %, rounded up."""
    return -(-n // 100)


def total_budget(keep_ratio: float, layers: int, n: int) -> int:
    """Return the tokens of all layers: round(keep_ratio * layers * n), but at least the floor.

    A prefix whose share is less than one token a layer is too short to compress and is kept whole:
    layers * n. Raises ValueError for keep_ratio outside [0.01, 1] or n below 1.
    """
    check_keep_ratio(keep_ratio)
    if layers < 1 or n < 1:
        raise ValueError(f'layers and tokens must be at least 1 (got {layers} and {n})')
    total = round(keep_ratio * layers * n)
    if total < layers:
        return layers * n
    return max(total, layers * floor_budget(n))


def apportion(weights: Sequence[float], total: int, floor: int, ceiling: int) -> list[int]:
    """Return integers in [floor, ceiling], in proportion to the weights, that sum to total.

    Bounded largest-remainder apportionment: `water_fill`, then rounding down, then one more for
    the largest remainders, ties to the lower index. A larger weight never gets less. Raises
    ValueError if no such integers exist or a weight is negative or not finite.
    """
    count = len(weights)
    if not count * floor <= total <= count * ceiling:
        raise ValueError(
            f'the total of {count} layers of {floor} to {ceiling} tokens must be in their range '
            f'(got {total})'
        )
    shares = water_fill(weights, total, floor, ceiling)
    whole = [int(share) for share in shares]
    by_remainder = sorted(range(count), key=lambda i: whole[i] - shares[i])
    for i in by_remainder[: total - sum(whole)]:
        whole[i] += 1
    return whole


def water_fill(weights: Sequence[float], total: int, floor: int, ceiling: int) -> list[Fraction]:
    """Return exact shares in [floor, ceiling] that sum to total, c * weight between the bounds.

    If all weights are 0 they count as equal.
    """
    try:
        exact = [Fraction(weight) for weight in weights]
    except (ValueError, OverflowError) as error:
        raise ValueError(f'weights must be finite (got {list(weights)})') from error
    if min(exact) < 0:
        raise ValueError(f'weights must be >= 0 (got {list(weights)})')
    low, high = Fraction(floor), Fraction(ceiling)
    shares = [low] * len(exact)
    free = set(range(len(exact)))
    left = Fraction(total)  # for the shares in `free`
    while free:
        weight = sum(exact[i] for i in free)
        share = {i: left * (exact[i] / weight if weight else Fraction(1, len(free))) for i in free}
        clipped = {i: min(max(share[i], low), high) for i in free}
        over = sum(clipped.values()) - left
        if over > 0:  # the level has to sink: shares at the floor stay there
            bound = {i for i in free if share[i] < low}
        elif over < 0:  # it has to rise: shares at the ceiling stay there
            bound = {i for i in free if share[i] > high}
        else:
            bound = free
        for i in bound:
            shares[i] = clipped[i]
        left -= sum(clipped[i] for i in bound)
        free = free - bound
    return shares


def equal(density: Sequence[float], keep_ratio: float, n: int) -> list[int]:
    return layer_budgets([1.0] * len(density), keep_ratio, n)


def by_density(density: Sequence[float], keep_ratio: float, n: int) -> list[int]:
    """Return VL-Cache's budgets (Algorithm 1): a dense layer keeps more."""
    return layer_budgets(density, keep_ratio, n)


def bounded(density: Sequence[float], keep_ratio: float, n: int) -> list[int]:
    """Return budgets by density, each at least half of an equal share."""
    layers = len(density)
    total = total_budget(keep_ratio, layers, n)
    least = max(floor_budget(n), int(LEAST * total / layers))
    return apportion(density, total, least, n)


def pyramid(density: Sequence[float], keep_ratio: float, n: int, beta: float = BETA) -> list[int]:
    """Return budgets that fall linearly from the first layer to the last.

    Source: PyramidKV (Cai et al. 2024). The last layer gets 1 / beta of the mean, and the first
    exceeds the mean by as much as the last falls below it. A line that would leave [floor, n] is
    made flatter about its mean, as in the code of PyramidKV, so that the sum stays `total_budget`.
    """
    layers, floor = len(density), floor_budget(n)
    total = total_budget(keep_ratio, layers, n)
    mean = total / layers
    slope = min(mean - max(mean / beta, floor), n - mean)  # first - mean = mean - last
    steps = max(1, layers - 1)
    budgets = [mean + slope * (1 - 2 * layer / steps) for layer in range(layers)]
    return apportion(budgets if layers > 1 else [mean], total, floor, n)


SHARES: dict[str, Callable[[Sequence[float], float, int], list[int]]] = dict(
    density=by_density, equal=equal, bounded=bounded, pyramid=pyramid
)
