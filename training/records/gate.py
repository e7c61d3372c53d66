"""The test whether a model can distinguish methods of KV reuse: full prefill against full reuse.

The criteria are fixed before anything is compared: the model is accurate with full prefill, and
full reuse loses some of that accuracy but not most, as with large models. A model that fails is
trained further, or discarded; nothing is compared on it.

The questions determine how much full reuse loses: with a quarter of questions about dittos
(`records.ASKED`), a model that reads the rest as well from independent records loses 25 points at
most. So the upper bound states that reuse breaks nothing but links, and the size of the loss is
not a finding. Comparisons on records are reported by links: 0, where reuse should cost nothing,
and each higher number.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch

from embodied_kv.model.planner import Planner
from training.judge.lessons import answers, read
from training.records.lessons import batch_of, view_of
from training.records.records import MAX_LINKS, draw_questions, draw_records

SIZES = (10, 20, 30)  # records
LEAST_FULL, LOSSES = 0.95, (0.10, 0.30)
AT_ONCE = 50  # problems in a batch


@dataclass(frozen=True)
class Gate:
    """Accuracies over questions as they are drawn. by_links: in full and by reuse."""

    full: float
    reuse: float
    n: int
    by_links: dict[int, tuple[float, float]]

    @property
    def loss(self) -> float:
        return self.full - self.reuse

    @property
    def holds(self) -> bool:
        low, high = LOSSES
        return self.full >= LEAST_FULL and low <= self.loss <= high

    def said(self) -> dict:
        """Return all values, for a table or a card."""
        return asdict(self) | dict(loss=self.loss, holds=self.holds)


def gate(model: Planner, problems: int, seed: int) -> Gate:
    """Return the gate for `problems` problems of each size, the same ones for every model."""
    plain = rates(model, problems, seed)
    by_links = {links: rates(model, problems, seed, links) for links in range(MAX_LINKS + 1)}
    return Gate(*plain, n=problems * len(SIZES), by_links=by_links)


@torch.no_grad()
def rates(
    model: Planner, problems: int, seed: int, links: int | None = None
) -> tuple[float, float]:
    """Return the accuracies by full prefill and by full reuse.

    links: of the questions; None for questions as they are drawn.
    """
    right = np.zeros(2)
    for size in SIZES:
        rng = np.random.default_rng((seed, size, 0 if links is None else 1 + links))
        records = draw_records(rng, problems, size)
        batch = batch_of(records, *draw_questions(rng, records, 1, links))
        for i, isolated in enumerate((False, True)):
            view = view_of(size, 1, isolated)
            for ids, answer in zip(
                batch.ids.split(AT_ONCE), batch.answer.split(AT_ONCE), strict=True
            ):
                said = answers(model, read(model, ids, view), view).argmax(-1)
                right[i] += int((said == answer).sum())
    full, reuse = right / (problems * len(SIZES))
    return float(full), float(reuse)
