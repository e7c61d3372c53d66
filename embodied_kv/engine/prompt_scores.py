"""What each prefix's own text attended to, kept until a question adds its own.

Knows rows and statistics. Does not know what is chosen by them.

Source: VL-Cache, section 4.1: all text behind the images scores them, the prompt's as well as the
question's.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from embodied_kv.compress.base import Statistics
from embodied_kv.config import ModelConfig
from embodied_kv.kv.budget import OverBudget
from embodied_kv.kv.handle import KvHandle
from embodied_kv.kv.manager import KvManager


class PromptScores:
    """Statistics of frames, each kept with its prefix row: they count and go with the row."""

    def __init__(self, kv: KvManager) -> None:
        self._frames, self._kv_budget, self._copies = kv.frames, kv.budget, kv.copies

    @staticmethod
    def most_bytes(model: ModelConfig) -> int:
        """Return the bytes of the longest prefix's statistics, float32."""
        b = model.backbone
        return 4 * b.layers * b.heads * (model.prefix_tokens + 1)

    def keep(self, handle: KvHandle, prompt: Statistics) -> None:
        """Copy them, for their buffers are the next prefill's.

        Nothing is kept where the KV budget has no room (`CopyPool.allocation_failures` counts), or
        where the frame is gone.
        """
        size = prompt.columns.nbytes + prompt.density.nbytes
        try:
            with self._kv_budget.claim(self._frames, size, cost=0.0):
                own = replace(
                    prompt, columns=prompt.columns.clone(), density=prompt.density.clone()
                )
                self._frames.attach(handle, own, size)
        except OverBudget:
            self._copies.allocation_failures += 1

    def of(self, handle: KvHandle) -> Statistics | None:
        """Return what is kept of this frame; None if there is nothing."""
        return self._frames.attached(handle)

    def added(self, handle: KvHandle, question: Statistics) -> Statistics:
        """The question's, and the prompt's if they are kept: sums of columns, means of densities.

        Densities are weighted by visible entries: of a prompt's query the prefix, of the
        question's also the question up to itself.
        """
        prompt = self.of(handle)
        if prompt is None:
            return question
        m, n = question.queries, question.n
        own, others = m * n + m * (m + 1) // 2, prompt.queries * n  # visible entries
        density = torch.lerp(question.density, prompt.density, others / (own + others))
        columns = question.columns + prompt.columns
        return replace(question, columns=columns, density=density, queries=m + prompt.queries)
