"""Words: all live streams, of whatever frames, one token further in one batch.

Source: OxyGen, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_kv.kv.manager import KvManager
from embodied_kv.kv.stream import Stream
from embodied_kv.kv.views import TailAppend
from embodied_kv.model.pi05 import Pi05


def choose(logits: Tensor, streams: Sequence[Stream]) -> list[int]:
    """The next token of each stream from logits [streams, vocab].

    Greedy, or by inverse distribution function from one number that depends on the stream's seed
    and its token count alone: the state of the random generator is the state of the stream.
    """
    # numpy's argmax is ten times faster than torch's on a CPU.
    best = logits.numpy().argmax(-1) if logits.device.type == 'cpu' else logits.argmax(-1)
    tokens = best.tolist()
    for i, stream in enumerate(streams):
        if stream.query.temperature > 0:
            philox = np.random.Philox(key=stream.query.seed, counter=len(stream.tokens))
            share = np.random.Generator(philox).random()
            cumulative = (logits[i].double() / stream.query.temperature).softmax(-1).cumsum(-1)
            tokens[i] = int(torch.searchsorted(cumulative, share * float(cumulative[-1])))
    return tokens


class Decoder:
    """Extends streams. multiple: the batch is padded to a multiple of this, for stable shapes."""

    def __init__(self, model: Pi05, kv: KvManager, eos: int, multiple: int = 1) -> None:
        self._model, self._kv, self._eos, self._multiple = model, kv, eos, multiple

    def padded(self, streams: int) -> int:
        """Slots of a batch of so many streams."""
        return -(-streams // self._multiple) * self._multiple

    def begin(self, stream: Stream) -> list[Stream]:
        """Appends the query of a new stream and chooses its first token."""
        return self._extend([stream], [list(stream.query.ids)])

    def step(self, streams: Sequence[Stream]) -> list[Stream]:
        """One token further; returns the streams that moved."""
        return self._extend(streams, [[stream.tokens[-1]] for stream in streams])

    def logits(self, streams: Sequence[Stream], ids: Sequence[Sequence[int]]) -> Tensor:
        """Appends ids -> float32 [streams, vocab].

        Equally many ids to each stream; the tails have grown already.
        """
        kv, width = self._kv, self.padded(len(streams))
        cache = TailAppend(
            kv.prefixes,
            kv.tails,
            [s.row for s in streams],
            [s.tail for s in streams],
            tokens=len(ids[0]),
            slots=width,
        )
        batch = torch.zeros(width, len(ids[0]), dtype=torch.int64)
        batch[: len(streams)] = torch.tensor(ids)
        return self._model.extend(batch.to(self._model.device), cache)[: len(streams)]

    def _extend(self, streams: Sequence[Stream], ids: Sequence[Sequence[int]]) -> list[Stream]:
        by_stream = dict(zip(streams, ids, strict=True))
        live = self._kv.grow(streams, len(ids[0]))
        try:
            if live:
                logits = self.logits(live, [by_stream[stream] for stream in live])
                self._kv.update(live, choose(logits, live), self._eos)
        finally:
            self._kv.end_step()
        return live
