"""Words: all live streams, of whatever frames, one token further in one batch.

Source: OxyGen, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_kv.config import EngineConfig
from embodied_kv.engine import buckets
from embodied_kv.engine.graphs import Graphs, Kind
from embodied_kv.kv.manager import KvManager
from embodied_kv.kv.stream import Stream
from embodied_kv.kv.views import TailAppend
from embodied_kv.model.pi05 import Pi05
from embodied_kv.runtime.buffer import Buffer

QUERY_STEP = 8  # tokens between two buckets of a query's length


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
    """Extends streams, by graphs of so many slots and so many new tokens of each."""

    def __init__(
        self, model: Pi05, kv: KvManager, eos: int, config: EngineConfig, graphs: Graphs
    ) -> None:
        self._model, self._kv, self._eos, self._graphs = model, kv, eos, graphs
        self._slots = buckets.multiples(config.streams, config.batch_multiple)
        queries = buckets.multiples(config.tail_tokens, QUERY_STEP)
        self._queries = (*queries[:-1], config.tail_tokens)
        most, device = self._slots[-1], model.device
        room = max(most, config.tail_tokens)
        self._ids = torch.zeros(room, dtype=torch.int64, device=device)
        self._logits = torch.zeros(most, model.config.backbone.vocab_size, device=device)
        shapes = [*((slots, 1) for slots in self._slots), *((1, n) for n in self._queries)]
        self._views = {shape: self._capture(*shape) for shape in dict.fromkeys(shapes)}

    def _capture(self, slots: int, tokens: int) -> TailAppend:
        model, kv = self._model, self._kv
        view = TailAppend(kv.prefixes, kv.tails, slots, tokens)
        ids, logits = self._ids[: slots * tokens].view(slots, tokens), self._logits[:slots]

        def extend() -> None:
            logits.copy_(model.extend(ids, view))

        self._graphs.capture(
            Kind.EXTEND,
            extend,
            [Buffer('logits', logits), *kv.tails.buffers('tails')],
            [Buffer('ids', ids), *kv.prefixes.buffers('prefixes'), *view.buffers],
            rows=slots,
            tail=tokens,
        )
        return view

    def padded(self, streams: int) -> int:
        """Slots of a batch of so many streams."""
        return buckets.smallest(self._slots, streams, 'streams', 'raise engine.streams')

    def begin(self, stream: Stream) -> list[Stream]:
        """Appends the query of a new stream and chooses its first token."""
        return self._extend([stream], [list(stream.query.ids)])

    def step(self, streams: Sequence[Stream]) -> list[Stream]:
        """One token further; returns the streams that moved."""
        return self._extend(streams, [[stream.tokens[-1]] for stream in streams])

    def logits(self, streams: Sequence[Stream], ids: Sequence[Sequence[int]]) -> Tensor:
        """Appends ids -> float32 [streams, vocab], until the next call.

        One id to each stream, or several to one; the tails have grown already.
        """
        count = len(ids[0])
        slots, tokens = self._shape(len(streams), count)
        batch = torch.zeros(slots, tokens, dtype=torch.int64)
        batch[: len(streams), :count] = torch.tensor(ids)
        self._ids[: batch.numel()].copy_(batch.flatten())
        view = self._views[slots, tokens]
        view.bind([s.row for s in streams], [s.tail for s in streams], count)
        self._graphs.get(Kind.EXTEND, rows=slots, tail=tokens).replay()
        return self._logits[: len(streams)]

    def _shape(self, streams: int, count: int) -> tuple[int, int]:
        if count == 1:
            return self.padded(streams), 1
        return 1, buckets.smallest(self._queries, count, 'tokens', 'raise engine.tail_tokens')

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
