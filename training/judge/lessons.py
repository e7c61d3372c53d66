"""Auxiliary targets of a judge: what the last token of a segment encodes after each layer.

After the first layer it encodes its own key. After the second one it encodes the adjacent segments
of the chain, and one layer before the end the whole chain, as far as its segments are earlier in
the prompt: the furthest value that its own leads to, and the keys that lead to it. Then a question
only has to find the segment that has its key and encodes an end. This is what is lost if segments
are computed independently.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.model.planner import Planner
from training.judge.chains import ASK, MAX_HOPS, at, draw_chains, earlier, furthest, walk
from training.judge.view import JudgeView

NOTHING = -100  # no target
# Layers after which a target is known; the others are known one layer before the end.
KEY, NEIGHBOUR = 1, 2


@dataclass(frozen=True, eq=False)
class ChainBatch:
    """Prompts with several questions each, and their auxiliary targets; long tensors.

    ids: [B, 2 + 2 S + Q]. answer: [B, Q]. key: [B, S]. ahead: the value one link further if that
    segment is earlier, else a segment's own; end: the furthest such value, [B, S]. behind: the
    keys 1 .. MAX_HOPS links back, NOTHING where they are not earlier, [B, MAX_HOPS, S].
    """

    ids: Tensor
    answer: Tensor
    key: Tensor
    ahead: Tensor
    end: Tensor
    behind: Tensor

    @property
    def view(self) -> JudgeView:
        return JudgeView(self.key.shape[1], self.answer.shape[1])


def draw_chain_batch(
    rng: np.random.Generator, prompts: int, segments: int, questions: int
) -> ChainBatch:
    """Draw chains of any length and layout.

    Questions start anywhere in them, no two at one segment.
    """
    chains = draw_chains(rng, prompts, segments)
    start = rng.permuted(np.tile(np.arange(segments), (prompts, 1)), axis=1)[:, :questions]
    ahead, back = earlier(chains.ahead), walk(earlier(chains.behind), MAX_HOPS)[:, 1:]
    ask = np.full((prompts, 1), ASK)
    columns = dict(
        ids=np.concatenate([chains.memory, ask, at(chains.keys, start)], axis=1),
        answer=at(chains.answers, start),
        key=chains.keys,
        ahead=at(chains.values, furthest(ahead, 1)),
        end=at(chains.values, furthest(ahead, MAX_HOPS)),
        behind=at(chains.keys, back.reshape(prompts, -1), NOTHING).reshape(back.shape),
    )
    return ChainBatch(**{name: torch.from_numpy(column) for name, column in columns.items()})


def read(model: Planner, ids: Tensor, view: JudgeView) -> list[Tensor]:
    """Return the hidden states after each layer, [B, T, width]. ids: [B, T]."""
    hidden, rope, layers = model.embed(ids), model.rope(view.positions), []
    for i in range(model.config.backbone.layers):
        hidden = model.layer(i, hidden, view, rope)
        layers.append(hidden)
    return layers


def answers(model: Planner, layers: list[Tensor], view: JudgeView) -> Tensor:
    """Return the logits of the questions, [B, Q, vocab]. layers: result of `read`."""
    return model.logits(model.backbone.norm(layers[-1][:, view.asked]))


class AuxiliaryHeads(nn.Module):
    """Linear maps from hidden states to auxiliary targets; only training needs them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        names = ('key', 'ahead', 'end', *(f'behind{i + 1}' for i in range(MAX_HOPS)))
        self.maps = nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in names})

    def forward(
        self, model: Planner, layers: list[Tensor], batch: ChainBatch
    ) -> dict[str, Tensor]:
        """Return losses by name."""
        last = len(layers) - 1
        lessons = {
            'key': (KEY, batch.key),
            'ahead': (NEIGHBOUR, batch.ahead),
            'end': (last, batch.end),
            'behind1': (NEIGHBOUR, batch.behind[:, 0]),
            **{f'behind{i + 1}': (last, batch.behind[:, i]) for i in range(1, MAX_HOPS)},
        }
        values = batch.view.values
        return {
            name: self._say(model, name, layers[layer - 1][:, values], target)
            for name, (layer, target) in lessons.items()
            if (target != NOTHING).any()
        }

    def _say(self, model: Planner, name: str, hidden: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy of hidden [B, S, width] against tokens [B, S]."""
        logits = model.logits(self.maps[name](model.backbone.norm(hidden)))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=NOTHING)
