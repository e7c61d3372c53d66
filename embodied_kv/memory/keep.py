"""KEEP: recompute the segments that matter to the question, found over several hops of attention.

Source: KEEP, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.memory.importance import importance
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.reuse import LayerState, Reuse, always_computed
from embodied_kv.memory.schedule import Schedule, share

BLOCK = 128  # queries whose attention is computed together


@dataclass(frozen=True)
class Keep(Reuse):
    """All segments in the first layer, then the relevant ones by multi-hop importance.

    `schedule` has the share of the segments per layer. See `importance` for hops, restart and
    propagation, and `segment_attention` for scoring_tokens.
    """

    schedule: Schedule
    hops: int = 8
    restart: float = 0.0
    scoring_tokens: int = 16
    propagation: str = 'directed'
    name, first_layer_full = 'keep', True

    def after(self, state: LayerState, computed: Tensor) -> Tensor:
        """Return the tokens of the relevant segments: the paper's `importance_evaluation`."""
        prompt = state.prompt
        mask = always_computed(prompt)
        dropped = {*prompt.owner[~computed].tolist()}
        pieces = enumerate(prompt.pieces)
        candidates = [i for i, piece in pieces if piece.unit and i not in dropped]
        ratio = self.schedule.ratios[state.layer + 1]
        if not candidates or not share(ratio, len(prompt.pieces)):
            return mask
        attention = segment_attention(state, self.scoring_tokens)
        choice = importance(
            *attention, ratio, candidates, self.hops, self.restart, self.propagation
        )
        state.on_choice(choice)
        return mask | torch.isin(prompt.owner, torch.tensor(choice.relevant))


def segment_attention(state: LayerState, scoring_tokens: int = 0) -> tuple[Tensor, Tensor]:
    """Return the attention from the question to each of s segments, [s], and between them, [s, s].

    The values are float32 means over heads and over the tokens of both segments. The row of a
    segment that this layer did not compute is zero. Of each segment, `scoring_tokens` evenly
    spread tokens attend; 0: all, as in the paper. All tokens are attended to.
    """
    prompt = state.prompt
    scoring = _spread(prompt, scoring_tokens)
    scoring[prompt.question_at :] = True
    asking = scoring[state.positions]
    onto = prompt.means[state.layout.present].to(state.keys.device)
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
    places = state.layout.places[state.positions[asking]].to(device)
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
