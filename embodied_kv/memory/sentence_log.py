"""Texts by id as an append-only tensor, so that a snapshot of them copies nothing.

Each change is a line of JSON: [id, text], or [id] where the text was removed. A snapshot is a
prefix of the tensor, which no later change modifies.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

SPARE = 2**16  # bytes of obsolete lines before the log is compacted


class SentenceLog:
    """A log with one writer. Any thread may read `bytes`, without waiting."""

    def __init__(self, sentences: Mapping[str, str] | None = None) -> None:
        self._live: dict[str, bytes] = {}
        self._size = 0  # bytes of `_live`
        self._room, self._used = np.empty(SPARE, np.uint8), 0
        self.put(sentences or {})

    def put(self, changes: Mapping[str, str | None]) -> None:
        """Add changes atomically; None removes the text of an id."""
        for id, text in changes.items():
            line = json.dumps([id] if text is None else [id, text]).encode() + b'\n'
            self._size -= len(self._live.pop(id, b''))
            if text is not None:
                self._live[id] = line
                self._size += len(line)
            self._append(line)
        if self._used > 2 * self._size + SPARE:
            self._room, self._used = np.empty(2 * self._size + SPARE, np.uint8), 0
            for line in self._live.values():
                self._append(line)
        self.bytes = torch.from_numpy(self._room[: self._used])

    def _append(self, line: bytes) -> None:
        end = self._used + len(line)
        if end > len(self._room):
            room = np.empty(2 * end, np.uint8)
            room[: self._used] = self._room[: self._used]
            self._room = room
        self._room[self._used : end] = np.frombuffer(line, np.uint8)
        self._used = end


def sentences(log: Tensor) -> dict[str, str]:
    """Return text by id from a log, uint8 [bytes]. Raise ValueError if it is damaged."""
    found: dict[str, str] = {}
    for line in io.BytesIO(bytes(log.cpu().numpy())):
        id, *text = json.loads(line)
        if not isinstance(id, str) or len(text) > 1 or not all(isinstance(t, str) for t in text):
            raise ValueError('lines of the log must be [id] or [id, text]')
        if text:
            found[id] = text[0]
        else:
            found.pop(id, None)
    return found
