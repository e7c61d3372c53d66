"""KEEP: recompute the segments that matter to the question, found over several hops of attention.

The paper does not state its shares by layer. Here each layer after the first computes the same
share, which is more accurate than a falling one (docs/benchmarks/memory.md).

Source: KEEP, section 4.2: the first layer computes all segments, and a segment that one layer
drops stays dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.memory.importance import Importance, importance, share
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.reuse import LayerState, Reuse, always_computed

BLOCK = 128  # queries whose attention is computed together
SCORING_TOKENS = 16  # tokens of a segment whose attention is read; the paper reads all


@dataclass(frozen=True)
class Keep(Reuse):
    """All segments in the first layer, then the relevant ones by multi-hop importance.

    `ratio` is the share of the segments that each layer after the first computes; see `importance`
    for `hops`.
    """

    ratio: float
    hops: int = 8
    name, first_layer_full = 'keep', True

    def after(self, state: LayerState, computed: Tensor) -> Tensor:
        """Return the tokens of the relevant segments: the paper's `importance_evaluation`."""
        prompt = state.prompt
        mask = always_computed(prompt)
        dropped = {*prompt.owner[~computed].tolist()}
        pieces = enumerate(prompt.pieces)
        candidates = [i for i, piece in pieces if piece.unit and i not in dropped]
        if not candidates or not share(self.ratio, len(prompt.pieces)):
            return mask
        choice = self.choice(state, candidates)
        state.on_choice(choice)
        return mask | torch.isin(prompt.owner, torch.tensor(choice.relevant))

    def choice(self, state: LayerState, candidates: Sequence[int]) -> Importance:
        """Return which of the candidates, given as indices of pieces, are relevant."""
        return importance(*segment_attention(state), self.ratio, candidates, self.hops)


def keep_ratio(recompute_ratio: float, layers: int) -> float:
    """Return the share of each layer after the first for this mean share over all layers.

    Raises ValueError for a mean outside [1 / layers, 1]; the first layer alone makes 1 / layers.
    """
    if not 1 / layers <= recompute_ratio <= 1:
        raise ValueError(
            f'recompute_ratio must be in [{1 / layers:.4g}, 1] with {layers} layers '
            f'(got {recompute_ratio})'
        )
    return round((layers * recompute_ratio - 1) / max(1, layers - 1), 12)


def segment_attention(
    state: LayerState, scoring_tokens: int = SCORING_TOKENS
) -> tuple[Tensor, Tensor]:
    """Return the attention from the question to each of s segments, [s], and between them, [s, s].

    The values are float32 means over heads and over the tokens of both segments. The row of a
    segment that this layer did not compute is zero. Of each segment, `scoring_tokens` evenly
    spread tokens attend; 0: all, as in the paper. All tokens are attended to.
    """
    prompt = state.prompt
    scoring = _spread(prompt, scoring_tokens)
    scoring[prompt.question_at :] = True
    asking = scoring[state.positions]
    onto = prompt.means.to(state.keys.device)
    attention = _attention(state, asking, onto).cpu()  # [T, s]
    positions = state.positions[asking]
    question = attention[positions >= prompt.question_at].mean(0)
    rows = prompt.means[positions]  # [T, s], the segment of each token
    between = (rows / rows.sum(0).clamp(min=1e-9)).T @ attention
    return question, between


def _spread(prompt: Prompt, most: int) -> Tensor:
    """Return at most that many tokens of each segment, including the last, bool [length]."""
    mine = prompt.owner >= 0
    if not most or not prompt.pieces:
        return mine
    owner = prompt.owner.clamp(min=0)
    size = torch.tensor([len(piece.ids) for piece in prompt.pieces])[owner]
    place = torch.arange(prompt.length) - torch.tensor(prompt.starts)[owner]
    count = size.clamp(max=most)
    return mine & ((place + 1) * count // size > place * count // size)


def _attention(state: LayerState, asking: Tensor, onto: Tensor) -> Tensor:
    """Return causal attention, mean over heads, times onto [tokens, s]: float32 [T, s].

    `asking`, bool, selects the queries among the tokens of the layer. The layer has computed the
    sums of its softmax already, so each block of queries reads only the keys before it.
    """
    device, kv_heads = state.keys.device, len(state.keys)
    places = state.positions[asking].to(device)
    mine = asking.to(device)
    heads, dim = state.queries.shape[1:]
    queries = (state.queries[mine].float() * dim**-0.5).unflatten(1, (kv_heads, -1))
    sums = state.sums[mine].float().unflatten(1, (kv_heads, -1))[..., None]
    keys = state.keys.float()
    parts = []
    for block in range(0, len(places), BLOCK):
        q, lse = (part[block : block + BLOCK].permute(1, 2, 0, 3) for part in (queries, sums))
        mine = places[block : block + BLOCK]
        begin, end = int(mine[0]), int(mine[-1]) + 1
        q, lse = (part.reshape(kv_heads, -1, part.shape[-1]) for part in (q, lse))
        weights = torch.baddbmm(lse, q, keys[:, :end].transpose(1, 2), beta=-1).exp_()
        weights = weights.view(heads, len(mine), end).sum(0)
        later = torch.arange(begin, end, device=keys.device) > mine[:, None]
        weights[:, begin:].masked_fill_(later, 0)
        parts.append(weights @ onto[:end])
    return torch.cat(parts) / heads
