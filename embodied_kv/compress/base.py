"""The interface of compression methods: statistics in, kept positions of each layer out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.compress.budget import OWN, SHARES, equal, total_budget


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the scoring queries attended to, over the n positions of one prefix.

    columns: float32 [layers, heads, n], softmax attention summed over the queries. density:
    float32 [layers, heads], share of visible entries that reach `Method.p` times the maximum of
    their row (1 - gamma; VL-Cache, 3.1). queries: number of queries. keys, values: [layers,
    kv_heads, n, head_dim], for methods with `reads_kv`.
    """

    columns: Tensor
    density: Tensor
    kv_heads: int
    queries: int
    keys: Tensor | None = None
    values: Tensor | None = None

    def __post_init__(self) -> None:
        layers, heads, _ = self.columns.shape
        if self.density.shape != (layers, heads):
            raise ValueError(
                f'density must be of shape {(layers, heads)} (got {tuple(self.density.shape)})'
            )
        if heads % self.kv_heads:
            raise ValueError(f'heads must be a multiple of {self.kv_heads} KV heads (got {heads})')

    @classmethod
    def unscored(
        cls, layers: int, kv_heads: int, n: int, device: torch.device | str = 'cpu'
    ) -> Statistics:
        """Return statistics without queries: zeros, and equally dense layers."""
        columns = torch.zeros(layers, kv_heads, n, device=device)
        return cls(columns, torch.ones(layers, kv_heads, device=device), kv_heads, queries=0)

    @property
    def layers(self) -> int:
        return self.columns.shape[0]

    @property
    def n(self) -> int:
        """Return the number of positions."""
        return self.columns.shape[2]

    @property
    def dense(self) -> list[float]:
        """Return the density of each layer, averaged over heads."""
        return self.density.double().mean(1).tolist()

    def grouped(self, scores: Tensor) -> Tensor:
        """Mean over each KV head's query heads: [layers, heads, n] -> [layers, kv_heads, n]."""
        return scores.unflatten(1, (self.kv_heads, -1)).mean(2)


@dataclass(frozen=True)
class Method:
    """A compression method; subclasses score tokens. Frozen, so that one serves all prefixes.

    recent: share of a layer's budget that its last positions get, whatever their scores (VL-Cache,
    A.4). p: threshold of the density of the statistics (VL-Cache, 3.1). shares: how the layers
    share a budget, one of `budget.SHARES`, or `OWN`.
    """

    name = ''
    # The queries that score: 'post_vision', 'all', 'window' or None. The type is in a comment,
    # because an annotation would make this a field.
    queries = None  # type: str | None
    window = 0  # number of queries for 'window'
    reads_kv = False  # whether it needs keys and values
    shortest = 1  # tokens; a shorter prefix is kept whole

    recent: float = 0.1
    p: float = 0.01
    shares: str = OWN

    def __post_init__(self) -> None:
        if self.shares not in (OWN, *SHARES):
            names = ', '.join((OWN, *SHARES))
            raise ValueError(f'shares must be one of {names} (got {self.shares!r})')
        if not 0 <= self.recent <= 1:
            raise ValueError(f'recent must be a share in [0, 1] (got {self.recent})')
        if not 0 < self.p < 1:
            raise ValueError(f'p must be in (0, 1) (got {self.p})')

    def validate_model(self, heads: int, kv_heads: int, head_dim: int, longest: int) -> None:
        """Raise ValueError if it cannot serve such a model. longest: most tokens of a prefix."""

    def budgets(self, stats: Statistics, keep_ratio: float) -> list[int]:
        """Return the tokens kept per layer, with the sum `budget.total_budget`."""
        return equal(stats.dense, keep_ratio, stats.n)

    def scores(self, stats: Statistics) -> Tensor:
        """Return float [layers, kv_heads, n]; the positions with the highest scores are kept."""
        raise NotImplementedError

    def select(self, stats: Statistics, keep_ratio: float) -> list[Tensor]:
        """Return the positions kept in each layer, ascending, int64 [kv_heads, its budget].

        The last positions of the prefix fill the share `recent` of a layer's budget (rounded,
        halves up); each KV head's highest scores among the other positions fill the rest, ties to
        the lower position. Everything is kept, unscored, for keep_ratio 1 and if the prefix is too
        short (`budget.total_budget`, `shortest`). Raises ValueError for keep_ratio outside [0.01,
        1], and if the method needs queries and there are none.
        """
        layers, n = stats.layers, stats.n
        if total_budget(keep_ratio, layers, n) == layers * n or n < self.shortest:
            everything = torch.arange(n, device=stats.columns.device)
            return [everything.repeat(stats.kv_heads, 1) for _ in range(layers)]
        if self.queries is not None and not stats.queries:
            raise ValueError(
                f'{self.name} must be scored by at least one query (got none); use '
                'base.scoring_queries, or choose streaming_llm or random'
            )
        if self.shares == OWN:
            budgets = self.budgets(stats, keep_ratio)
        else:
            budgets = SHARES[self.shares](stats.dense, keep_ratio, n)
        scores = self.scores(stats).clone()
        for layer, budget in enumerate(budgets):
            scores[layer, :, n - int(self.recent * budget + 0.5) :] = float('inf')
        order = scores.sort(dim=-1, descending=True, stable=True).indices
        return [order[layer, :, :budget].sort(-1).values for layer, budget in enumerate(budgets)]


def scoring_queries(
    wanted: str | None, prefix: int, text: int, question: int = 0, window: int = 0
) -> range:
    """Return the positions of the queries that score a prefix, counted over prefix and question.

    wanted: a method's `queries`. prefix: its number of tokens, of which the last `text` follow the
    images. question: tokens of a question appended to it; 0: the prefix is scored alone. window:
    number of queries for wanted 'window'.

    'post_vision' is the question if there is one, else all text behind the images (tau in
    VL-Cache, 4.1; its speed measurements take the last 50 tokens, 5.2). A prompt without images is
    all text. 'all' is every token, 'window' the last ones, None nothing. Raises ValueError if
    'post_vision' is wanted and no text follows the images.
    """
    end = prefix + question
    if wanted is None:
        return range(0)
    if wanted == 'all':
        return range(end)
    if wanted == 'window':
        return range(max(0, end - window), end)
    if wanted != 'post_vision':
        names = "'post_vision', 'all', 'window' or None"
        raise ValueError(f'queries must be {names} (got {wanted!r})')
    asked = question or text
    if not asked:
        raise ValueError(
            'a scored prefix must have text behind its images (got none); append a question, or '
            'choose a method that needs no queries (streaming_llm, random)'
        )
    return range(end - asked, end)
