"""KEEP: the segments that matter to this question, hop by hop, are computed again.

Source: KEEP, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_kv.memory.importance import importance
from embodied_kv.memory.prompt import Prompt
from embodied_kv.memory.reuse import Look, Reuse, always
from embodied_kv.memory.schedule import Schedule


@dataclass(frozen=True)
class Keep(Reuse):
    """All segments in the first layer, then the relevant ones by multi-hop importance.

    schedule: share of the segments per layer. hops: propagations at most; 0 asks the query alone.
    restart: see `importance`.
    """

    schedule: Schedule
    hops: int = 8
    restart: float = 0.0
    name = 'keep'

    def first(self, prompt: Prompt) -> Tensor:
        return torch.ones(prompt.length, dtype=torch.bool)

    def after(self, look: Look, computed: Tensor) -> Tensor:
        return self.importance_evaluation(look, computed)

    def importance_evaluation(self, look: Look, computed: Tensor) -> Tensor:
        """The paper's third interface: tokens of the segments that the next layer computes."""
        prompt = look.prompt
        mask = always(prompt)
        candidates = [
            i
            for i, (start, piece) in enumerate(zip(prompt.starts, prompt.pieces, strict=True))
            if piece.unit and computed[start : start + len(piece.ids)].all()
        ]
        if not candidates:
            return mask
        relevant = importance(
            *segment_attention(look),
            self.schedule.ratios[look.layer + 1],
            candidates,
            self.hops,
            self.restart,
        )
        for i in relevant.kept:
            start = prompt.starts[i]
            mask[start : start + len(prompt.pieces[i].ids)] = True
        return mask


def segment_attention(look: Look) -> tuple[Tensor, Tensor]:
    """Attention from the question to each of s segments, [s], and between segments, [s, s].

    Float32, means over heads, and over the tokens of both; of a segment that was not computed in
    this layer the row is zero.
    """
    prompt, places = look.prompt, look.places
    segments, length = len(prompt.pieces), prompt.length
    owner = prompt.owner
    of_segment = torch.zeros(length, segments)
    memory = owner >= 0
    of_segment[memory, owner[memory]] = 1
    mean = of_segment / of_segment.sum(0).clamp(min=1)  # [length, s]
    attention = _attention(look.queries, look.keys, places) @ mean  # [T, s]
    question = attention[places >= prompt.question_at].mean(0)
    rows = of_segment[places]  # [T, s]: whose token it is
    between = (rows / rows.sum(0).clamp(min=1)).T @ attention
    return question, between


def _attention(queries: Tensor, keys: Tensor, places: Tensor) -> Tensor:
    """Causal softmax attention, mean over heads: float32 [T, length]."""
    tokens, heads, dim = queries.shape
    group = heads // len(keys)
    hidden = torch.arange(keys.shape[1]) > places[:, None]
    total = torch.zeros(tokens, keys.shape[1])
    for head in range(heads):
        scores = queries[:, head].float() @ keys[head // group].float().T * dim**-0.5
        total += scores.masked_fill_(hidden, float('-inf')).softmax(-1)
    return total / heads
