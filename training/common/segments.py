"""Pack questions and answers behind each prefix: segments that do not see one another.

This module knows token ids. A segment is a question with its answer, as a decode stream extends a
prefix.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from embodied_kv.model.tokenizer import Tokenizer
from training.common.batch import EMPTY


class Segments:
    """Segments of `size` samples, with at most `length` tokens each.

    things: number of things per sample whose positions can be asked for.
    """

    def __init__(self, tokenizer: Tokenizer, size: int, length: int, things: int) -> None:
        self._encode = lru_cache(None)(tokenizer.encode)
        self._eos = tokenizer.eos
        self._ids = np.full((size, length), tokenizer.pad)
        self._segment = np.full((size, length), -1)
        self._offset = np.zeros((size, length), int)
        self._answer = np.full((size, length), EMPTY)
        self._where = np.full((size, things), -1)
        self._used = np.zeros(size, int)
        self._count = np.zeros(size, int)

    def say(self, sample: int, question: str, answer: str) -> bool:
        """Append a question, with its answer and <eos> as targets.

        Returns False if there is no room.
        """
        asked, said = self._encode(question), self._encode(f' {answer}')
        at = self._append(sample, [*asked, *said])
        if at is None:
            return False
        first = at + len(asked) - 1
        self._answer[sample, first : first + len(said) + 1] = [*said, self._eos]
        return True

    def name(self, sample: int, name: str, thing: int | None = None) -> None:
        """Append a segment with the name of a thing.

        thing: index of the thing whose position is read from the last token of the name; None for
        none.
        """
        at = self._append(sample, self._encode(f' {name}'))
        if thing is not None and at is not None:
            self._where[sample, thing] = self._used[sample] - 1

    def ask_where(self, sample: int, names: list[str]) -> None:
        """Read each thing's position from the last token of the first mention of its name.

        A position that `name` asked for stays.
        """
        ids = self._ids[sample, : self._used[sample]].tolist()
        for n, name in enumerate(names):
            if self._where[sample, n] >= 0:
                continue
            wanted = self._encode(f' {name}')
            starts = range(len(ids) - len(wanted) + 1)
            at = next((i for i in starts if ids[i : i + len(wanted)] == wanted), None)
            if at is not None:
                self._where[sample, n] = at + len(wanted) - 1

    def _append(self, sample: int, ids: list[int]) -> int | None:
        at = self._used[sample]
        end = at + len(ids)
        if end > self._ids.shape[1]:
            return None
        self._ids[sample, at:end] = ids
        self._segment[sample, at:end] = self._count[sample]
        self._offset[sample, at:end] = np.arange(len(ids))
        self._used[sample], self._count[sample] = end, self._count[sample] + 1
        return at

    def tensors(self) -> dict[str, Tensor]:
        """Return the batch fields of the segments.

        packed, segment, offset, answer: long [size, length]. where_at: long [size, things].
        """
        arrays = {
            'packed': self._ids,
            'segment': self._segment,
            'offset': self._offset,
            'answer': self._answer,
            'where_at': self._where,
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
