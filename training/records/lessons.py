"""Auxiliary targets of the deeper judge, and batches that teach many questions in one pass.

After the second layer an attribute encodes the name of its record and of the antecedent; two
layers before the end it encodes its value, whichever record states it. Then a question only has to
find the attribute of its name. This is what is lost if records are computed independently.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.model.planner import Planner
from training.judge.view import JudgeView
from training.records.records import (
    ASK,
    ATTRIBUTES,
    FIRST,
    TOKENS,
    Records,
    draw_questions,
    draw_records,
)

NOTHING = -100  # no target
WHOSE = 2  # layers after which an attribute encodes its record's name and its antecedent's


@dataclass(frozen=True, eq=False)
class RecordBatch:
    """Long tensors. ids: [B, 2 + 8 S + Q]. answer: [B, Q].

    name, like, value: of each attribute token, [B, 4 S]: its record's name, the antecedent's name,
    and its value.
    """

    ids: Tensor
    answer: Tensor
    name: Tensor
    like: Tensor
    value: Tensor

    @property
    def view(self) -> JudgeView:
        return view_of(self.name.shape[1] // ATTRIBUTES, self.answer.shape[1])


def view_of(segments: int, questions: int, isolated: bool = False) -> JudgeView:
    """Return the attention view; isolated: a record sees only itself, as under full reuse."""
    return JudgeView(segments, questions, isolated, TOKENS)


def batch_of(records: Records, attribute: np.ndarray, asked: np.ndarray) -> RecordBatch:
    """Return the prompts of records with these questions, one attribute per prompt."""
    rows = np.arange(len(asked))[:, None]
    names = records.names[rows, asked]
    ids = np.concatenate([records.memory, (ASK + attribute)[:, None], names], 1)
    like = np.where(records.like < 0, NOTHING, records.names[rows, np.maximum(records.like, 0)])
    columns = dict(
        ids=ids,
        answer=records.values[rows, asked, attribute[:, None]],
        name=np.repeat(records.names, ATTRIBUTES, 1),
        like=np.repeat(like, ATTRIBUTES, 1),
        value=records.values.reshape(len(asked), -1),
    )
    return RecordBatch(**{name: torch.from_numpy(column) for name, column in columns.items()})


def draw_batch(
    rng: np.random.Generator, prompts: int, segments: int, questions: int
) -> RecordBatch:
    """Draw prompts to learn from."""
    records = draw_records(rng, prompts, segments)
    return batch_of(records, *draw_questions(rng, records, min(questions, segments)))


class AuxiliaryHeads(nn.Module):
    """Linear maps from hidden states to auxiliary targets; only training needs them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        names = ('name', 'like', 'value')
        self.maps = nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in names})

    def forward(
        self, model: Planner, layers: list[Tensor], batch: RecordBatch
    ) -> dict[str, Tensor]:
        """Return losses by name. layers: hidden states after each, [B, T, width]."""
        at = attribute_places(batch.name.shape[1] // ATTRIBUTES)
        lessons = dict(
            name=(WHOSE, batch.name),
            like=(WHOSE, batch.like),
            value=(max(WHOSE, len(layers) - 2), batch.value),
        )
        losses = {}
        for name, (layer, target) in lessons.items():
            hidden = self.maps[name](model.backbone.norm(layers[layer - 1][:, at]))
            logits = model.logits(hidden).flatten(0, 1)
            losses[name] = F.cross_entropy(logits, target.flatten(), ignore_index=NOTHING)
        return losses


def attribute_places(segments: int) -> Tensor:
    """Return the slots of the attributes in a prompt, [4 S]."""
    start = 1 + TOKENS * torch.arange(segments)[:, None]
    return (start + FIRST + torch.arange(ATTRIBUTES)).flatten()
