"""The one shape of a compression method: statistics in, positions kept per layer out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.compress.budget import OWN, SHARES, equal, total_budget


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the scoring queries attended to, over the n positions of one prefix.

    columns: float32 [layers, heads, n], softmax attention summed over the queries. density:
    float32 [layers, heads], share of visible entries that reach p times their row's maximum
    (1 - gamma, 3.1), for one p. queries: how many there were. visible: int [n], how many of them
    could see each position; None: all. keys, values: [layers, kv_heads, n, head_dim], for methods
    that look at them.
    """

    columns: Tensor
    density: Tensor
    kv_heads: int
    queries: int
    visible: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None

    def __post_init__(self) -> None:
        layers, heads, n = self.columns.shape
        if self.density.shape != (layers, heads):
            raise ValueError(
                f'density of shape {tuple(self.density.shape)} for {layers} layers, {heads} heads'
            )
        if heads % self.kv_heads:
            raise ValueError(f'{heads} heads do not share {self.kv_heads} KV heads')
        if self.visible is not None and self.visible.shape != (n,):
            raise ValueError(f'visible of shape {tuple(self.visible.shape)} for {n} positions')

    @classmethod
    def unscored(
        cls, layers: int, kv_heads: int, n: int, device: torch.device | str = 'cpu'
    ) -> Statistics:
        """For methods that need no queries: zeros, and every layer equally dense."""
        columns = torch.zeros(layers, kv_heads, n, device=device)
        return cls(columns, torch.ones(layers, kv_heads, device=device), kv_heads, queries=0)

    @property
    def layers(self) -> int:
        return self.columns.shape[0]

    @property
    def n(self) -> int:
        """Positions of the prefix."""
        return self.columns.shape[2]

    @property
    def dense(self) -> list[float]:
        """Head means of the density, by layer."""
        return self.density.double().mean(1).tolist()

    def grouped(self, scores: Tensor) -> Tensor:
        """Mean over each KV head's query heads: [layers, heads, n] -> [layers, kv_heads, n]."""
        return scores.unflatten(1, (self.kv_heads, -1)).mean(2)


@dataclass(frozen=True)
class Method:
    """Scores tokens and shares a budget; a subclass says how. Frozen: one serves all prefixes.

    recent: share of a layer's budget that goes to its last positions, whatever their scores (A4).
    p: threshold that the statistics' density is to be made with (3.1). shares: how the layers
    share a budget, one of `shares.SHARES`, or the method's own way.
    """

    name = ''
    # By which it wants to be scored: 'post_vision', 'all', 'window' or None. An annotation that is
    # no comment would make it a field.
    queries = None  # type: str | None
    window = 0  # how many queries 'window' means
    reads_kv = False  # whether it looks at keys and values
    shortest = 1  # tokens of a prefix that it can choose from; a shorter one is kept whole

    recent: float = 0.1
    p: float = 0.01
    shares: str = OWN

    def __post_init__(self) -> None:
        if self.shares not in (OWN, *SHARES):
            raise ValueError(f'no shares {self.shares!r}; there are: {OWN}, {", ".join(SHARES)}')
        if not 0 <= self.recent <= 1:
            raise ValueError(f'recent must be a share in [0, 1] (got {self.recent})')
        if not 0 < self.p < 1:
            raise ValueError(f'p is {self.p}: a threshold must be in (0, 1)')

    def check(self, heads: int, kv_heads: int, head_dim: int, longest: int) -> None:
        """Raises ValueError where it cannot choose from prefixes of such a model.

        longest: tokens of a prefix, at most.
        """

    def budgets(self, stats: Statistics, keep_ratio: float) -> list[int]:
        """Tokens kept per layer; their sum is `budget.total_budget`. A method's own way: equal."""
        return equal(stats.dense, keep_ratio, stats.n)

    def scores(self, stats: Statistics) -> Tensor:
        """Importance of each position, float [layers, kv_heads, n]; the highest are kept."""
        raise NotImplementedError

    def select(self, stats: Statistics, keep_ratio: float) -> list[Tensor]:
        """Positions kept in each layer, ascending: int64 [kv_heads, tokens of that layer].

        The last `recent` of a layer's budget (rounded, halves up) are the prefix's last positions;
        the others are each KV head's highest scores of what is left, ties to the lower position.
        Everything is kept, unscored, for keep_ratio 1 and where the prefix is too short
        (`budget.total_budget`, `shortest`). Raises ValueError for keep_ratio outside [0.01, 1],
        and if the method needs queries and there were none.
        """
        layers, n = stats.layers, stats.n
        if total_budget(keep_ratio, layers, n) == layers * n or n < self.shortest:
            everything = torch.arange(n, device=stats.columns.device)
            return [everything.repeat(stats.kv_heads, 1) for _ in range(layers)]
        if self.queries is not None and not stats.queries:
            raise ValueError(
                f'{self.name} is scored by attention, and there were no queries: give it some '
                '(limits.scoring_queries), or take streaming_llm or random'
            )
        own = self.shares == OWN
        budgets = (
            self.budgets(stats, keep_ratio)
            if own
            else SHARES[self.shares](stats.dense, keep_ratio, n)
        )
        scores = self.scores(stats).clone()
        for layer, budget in enumerate(budgets):
            scores[layer, :, n - int(self.recent * budget + 0.5) :] = float('inf')
        order = scores.sort(dim=-1, descending=True, stable=True).indices
        return [order[layer, :, :budget].sort(-1).values for layer, budget in enumerate(budgets)]
