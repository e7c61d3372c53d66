"""How a budget is shared over the layers: a way by name, whatever scores the tokens.

Each takes the layers' densities (head means), the keep ratio and the prefix's n, and gives tokens
per layer that sum to `budget.total_budget`. Knows numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embodied_kv.compress.budget import apportion, floor_budget, layer_budgets, total_budget

OWN = 'own'  # the way of the method itself
LEAST = 0.5  # of an equal share, that a bounded one has at least
BETA = 20.0  # of a pyramid: the mean over the last layer's share


def equal(density: Sequence[float], keep_ratio: float, n: int) -> list[int]:
    """As many for each layer."""
    return layer_budgets([1.0] * len(density), keep_ratio, n)


def by_density(density: Sequence[float], keep_ratio: float, n: int) -> list[int]:
    """VL-Cache's Algorithm 1: a dense layer keeps more."""
    return layer_budgets(density, keep_ratio, n)


def bounded(density: Sequence[float], keep_ratio: float, n: int) -> list[int]:
    """By density, but no layer gets less than half of an equal share."""
    layers = len(density)
    total = total_budget(keep_ratio, layers, n)
    least = max(floor_budget(n), int(LEAST * total / layers))
    return apportion(density, total, least, n)


def pyramid(density: Sequence[float], keep_ratio: float, n: int, beta: float = BETA) -> list[int]:
    """On a line from the first layer to the last, as PyramidKV (Cai et al. 2024).

    The last layer gets 1 / beta of the mean, the first as much more than the mean as the last gets
    less. A line that would leave [floor, n] is made flatter about its mean, as in its code, so the
    sum is the total of every method, exactly.
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
