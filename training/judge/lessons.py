"""What a judge is taught beside answers: what a segment's last token knows, layer by layer.

After the first layer its own key. After the second one its neighbours in the chain, and after the
last but one all of the chain, as far as these stand earlier: the furthest value that its own leads
to, and the keys that lead to it. So a question has one thing left to do: to find the segment that
answers to its key and knows an end. That is what is lost where segments are computed apart.
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
# Layers after which a lesson is known; all others but one layer from the end.
KEY, NEIGHBOUR = 1, 2


@dataclass(frozen=True, eq=False)
class ChainBatch:
    """Prompts with several questions each, and what is to be known of them; long tensors.

    ids: [B, 2 + 2 S + Q]. answer: [B, Q]. key: [B, S]. ahead: the value one link further, if that
    segment stands earlier, else a segment's own; end: the furthest such value, [B, S]. behind: the
    keys 1 .. MAX_HOPS links back, NOTHING where they do not stand earlier, [B, MAX_HOPS, S].
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
    """Chains of any length and layout; questions start anywhere in them, no two at one segment."""
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
    """ids [B, T] -> hidden states after each layer, [B, T, width]."""
    hidden, rope, layers = model.embed(ids), model.rope(view.positions), []
    for i in range(model.config.backbone.layers):
        hidden = model.layer(i, hidden, view, rope)
        layers.append(hidden)
    return layers


def answers(model: Planner, layers: list[Tensor], view: JudgeView) -> Tensor:
    """What `read` gives -> logits of the questions, [B, Q, vocab]."""
    return model.logits(model.backbone.norm(layers[-1][:, view.asked]))


class AuxiliaryHeads(nn.Module):
    """Linear maps from hidden states to what is known; only training needs them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        names = ('key', 'ahead', 'end', *(f'behind{i + 1}' for i in range(MAX_HOPS)))
        self.maps = nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in names})

    def forward(
        self, model: Planner, layers: list[Tensor], batch: ChainBatch
    ) -> dict[str, Tensor]:
        """Losses by name."""
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
        """Cross-entropy of hidden [B, S, width] against tokens [B, S]."""
        logits = model.logits(self.maps[name](model.backbone.norm(hidden)))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=NOTHING)
