"""Whether a model can tell ways of reuse apart: how often it is right in full, and by full reuse.

The gate of a test bed, fixed before anything is compared on it: right in full, and full reuse
loses some of that but not most, as with large models. A model that does not pass is trained on, or
given up; nothing is compared on it.

How much full reuse loses is set by what is asked: with a quarter of questions about dittos
(`records.ASKED`) a model that reads the rest as well apart loses 25 points at most. So the upper
bound says that reuse breaks no more than links, and the size of the loss is no finding. Ways that
are compared on records are reported by links: 0, where reuse should cost nothing, and each more.
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
AT_ONCE = 50  # problems


@dataclass(frozen=True)
class Gate:
    """Rates of right answers, over questions as they are asked; by_links: full and by reuse."""

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
        """All of it, for a table or a card."""
        return asdict(self) | dict(loss=self.loss, holds=self.holds)


def gate(model: Planner, problems: int, seed: int) -> Gate:
    """Of so many problems a size, the same ones for every model."""
    plain = rates(model, problems, seed)
    by_links = {links: rates(model, problems, seed, links) for links in range(MAX_LINKS + 1)}
    return Gate(*plain, n=problems * len(SIZES), by_links=by_links)


@torch.no_grad()
def rates(
    model: Planner, problems: int, seed: int, links: int | None = None
) -> tuple[float, float]:
    """Right by full prefill and by full reuse; links: of what is asked, None as it comes."""
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
