"""What each prefix's own text attended to, kept until a question adds its own.

Knows rows and statistics. Does not know what is chosen by them.

Source: VL-Cache, section 4.1: all text behind the images scores them, the prompt's as well as the
question's.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from embodied_kv.compress.base import Statistics
from embodied_kv.kv.handle import KvHandle


class PromptScores:
    """Statistics by prefix row. What is kept of a frame is not found by a later one's handle."""

    def __init__(self, rows: int) -> None:
        self._by_row: list[tuple[int, Statistics] | None] = [None] * rows

    def keep(self, handle: KvHandle, prompt: Statistics) -> None:
        """Copies them: their buffers are the next prefill's."""
        own = replace(prompt, columns=prompt.columns.clone(), density=prompt.density.clone())
        self._by_row[handle.row] = handle.generation, own

    def of(self, handle: KvHandle) -> Statistics | None:
        """What is kept of this frame."""
        generation, prompt = self._by_row[handle.row] or (None, None)
        return prompt if generation == handle.generation else None

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
