"""Decoding: all live streams, of whatever frames, one token further in one batch.

Source: OxyGen, Algorithm 1.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_kv.engine import buckets
from embodied_kv.engine.compression import Compression
from embodied_kv.engine.graphs import Graphs, Kind
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.joint import JointTail
from embodied_kv.kv.manager import KvManager
from embodied_kv.kv.scored import ScoredTailAppend
from embodied_kv.kv.views import TailAppend
from embodied_kv.model.pi05 import Pi05
from embodied_kv.runtime.buffer import Buffer

QUERY_STEP = 8  # tokens between two buckets of a query's length
COMPILED_QUERY = 2 * QUERY_STEP  # tokens of the one that is compiled


def choose(logits: Tensor, streams: Sequence[DecodeStream]) -> list[int | None]:
    """The next token of each stream from logits [streams, vocab].

    Greedy, or by inverse distribution function from one number that depends on the stream's seed
    and its token count alone: the state of the random generator is the state of the stream. None
    for a stream that none can be chosen for, which is logged.
    """
    tokens: list[int | None] = []
    for stream, own, token, score in zip(streams, logits, *_best(logits), strict=True):
        try:
            if not math.isfinite(score):  # the greatest is NaN if any is
                raise FloatingPointError(f'its logits are not finite: the greatest is {score}')
            tokens.append(
                _draw(own.double() - score, stream) if stream.query.temperature > 0 else token
            )
        except Exception as error:  # a fault of this stream is not the others'
            logging.getLogger(__name__).error('stream %d ended: %s', stream.id, error)
            tokens.append(None)
    return tokens


def _best(logits: Tensor) -> tuple[list[int], list[float]]:
    """The token of the greatest logit of each stream, and that logit."""
    if logits.device.type == 'cpu':  # numpy's argmax is ten times faster than torch's
        best = logits.numpy().argmax(-1)
        return best.tolist(), logits.numpy()[np.arange(len(best)), best].tolist()
    best = torch.stack([part.double() for part in logits.max(-1)])
    scores, tokens = best.tolist()  # one wait for both
    return [int(token) for token in tokens], scores


def _draw(logits: Tensor, stream: DecodeStream) -> int:
    """logits: float64 [vocab], the greatest is 0, so that no temperature is too small."""
    philox = np.random.Philox(key=stream.query.seed, counter=len(stream.tokens))
    share = np.random.Generator(philox).random()
    cumulative = (logits / stream.query.temperature).softmax(-1).cumsum(-1)
    return int(torch.searchsorted(cumulative, share * float(cumulative[-1])))


class Decoder:
    """Extends streams, by graphs of so many slots and so many new tokens of each."""

    def __init__(
        self,
        model: Pi05,
        kv: KvManager,
        eos: int,
        config: EngineConfig,
        graphs: Graphs,
        compression: Compression,
    ) -> None:
        self._model, self._kv, self._eos, self._graphs = model, kv, eos, graphs
        self._compression = compression
        self._slots = buckets.multiples(config.streams, config.batch_multiple)
        if graphs.compiles:  # a compiled batch is worth its padding
            self._slots = buckets.doubling(config.streams)
        queries = buckets.multiples(config.decode_tokens, QUERY_STEP)
        self._queries = (*queries[:-1], config.decode_tokens)
        most, device = self._slots[-1], model.device
        room = max(most, config.decode_tokens)
        self._ids = torch.zeros(room, dtype=torch.int64, device=device)
        self._out = torch.zeros(most, model.config.backbone.vocab_size, device=device)
        self._views: dict[tuple[Kind, int, int], TailAppend] = {}
        self._joints: dict[tuple[int, int], JointTail] = {}
        for slots in self._slots:
            self._capture(Kind.EXTEND, slots, 1)
        for tokens in self._queries:
            self._capture(Kind.EXTEND, 1, tokens)
        if compression.is_scored and compression.by != 'row':
            for tokens in self._queries:
                self._capture(Kind.SCORED_EXTEND, 1, tokens)

    def _capture(self, kind: Kind, slots: int, tokens: int) -> None:
        model, kv, scores = self._model, self._kv, self._compression.scores
        arenas = kv.prefixes, kv.decode_kv, slots, tokens
        if kind is Kind.SCORED_EXTEND:
            view = ScoredTailAppend(*arenas, scores, self._compression.max_queries)
        else:
            view = TailAppend(*arenas, kv.compressed)
        ids, logits = self._ids[: slots * tokens].view(slots, tokens), self._out[:slots]

        def extend() -> None:
            logits.copy_(model.extend(ids, view))

        self._graphs.capture(
            kind,
            extend,
            [Buffer('logits', logits), *kv.decode_kv.buffers('decode_kv'), *scores.buffers],
            [
                Buffer('ids', ids),
                *kv.prefixes.buffers('prefixes'),
                *kv.compressed.buffers('compressed'),
                *view.buffers,
            ],
            rows=slots,
            tokens=tokens,
        )
        self._views[kind, slots, tokens] = view
        if self._graphs.compiles and kind is Kind.EXTEND and tokens in (1, COMPILED_QUERY):
            self._compile(view, ids, logits)

    def _compile(self, view: TailAppend, ids: Tensor, logits: Tensor) -> None:
        """One more, compiled, for streams that read whole prefixes."""
        (slots, tokens), joint = ids.shape, view.joint

        def extend() -> None:
            logits.copy_(self._model.extend(ids, joint))

        self._joints[slots, tokens] = joint
        self._graphs.compile(
            Kind.EXTEND,
            extend,
            [Buffer('logits', logits), *joint.own.buffers],
            [
                Buffer('ids', ids),
                *self._kv.prefixes.buffers('prefixes'),
                *self._kv.decode_kv.buffers('decode_kv'),
                *view.buffers,
            ],
            rows=slots,
            tokens=tokens,
        )

    def padded(self, streams: int) -> int:
        """Slots of a batch of so many streams."""
        return buckets.smallest(self._slots, streams, 'streams', 'raise engine.streams')

    def bucket(self, query: Query) -> int:
        """Tokens that a query is padded to when it is appended."""
        sizes, tokens = self._queries, len(query.ids)
        if tokens <= COMPILED_QUERY and (1, COMPILED_QUERY) in self._joints:
            return COMPILED_QUERY
        return buckets.smallest(sizes, tokens, 'tokens', 'raise engine.decode_tokens')

    def begin(self, stream: DecodeStream) -> list[DecodeStream]:
        """Appends the query of a new stream, chooses its first token, and compresses its prefix.

        The first token still reads the whole prefix, as in a prefill.
        """
        ids = list(stream.query.ids)
        tokens = self.bucket(stream.query)
        decided = self._compression.decide()
        scored = decided.scores_question and not stream.lease.is_copy
        kind = Kind.SCORED_EXTEND if scored else Kind.EXTEND
        if scored:
            queries = self._compression.question_queries(len(ids))
            self._views[kind, 1, tokens].bind_queries([queries])
        begun = self._extend([stream], [ids], kind, tokens)
        for stream in begun:
            self._compression.compress_stream(stream, decided)
        return begun

    def step(self, streams: Sequence[DecodeStream]) -> list[DecodeStream]:
        """One token further; returns the streams that moved."""
        return self._extend(streams, [[stream.tokens[-1]] for stream in streams], Kind.EXTEND, 1)

    def _logits(
        self,
        streams: Sequence[DecodeStream],
        ids: Sequence[Sequence[int]],
        kind: Kind,
        tokens: int,
    ) -> Tensor:
        """Appends ids, equally many to each stream -> float32 [streams, vocab], until the next.

        The streams have grown already. tokens: of the bucket.
        """
        slots = self.padded(len(streams)) if tokens == 1 else 1
        batch = torch.zeros(slots, tokens, dtype=torch.int64)
        batch[: len(streams), : len(ids[0])] = torch.tensor(ids)
        self._ids[: batch.numel()].copy_(batch.flatten())
        rows = [s.row for s in streams], [s.decode_row for s in streams]
        copies = [s.lease.compressed_row for s in streams]
        self._views[kind, slots, tokens].bind(*rows, len(ids[0]), copies)
        compiled = self._graphs.compiled(kind, rows=slots, tokens=tokens)
        if compiled is not None and max(copies) < 0:
            compiled.replay()
            self._joints[slots, tokens].keep()
        else:
            self._graphs.get(kind, rows=slots, tokens=tokens).replay()
        return self._out[: len(streams)]

    def _extend(
        self,
        streams: Sequence[DecodeStream],
        ids: Sequence[Sequence[int]],
        kind: Kind,
        tokens: int,
    ) -> list[DecodeStream]:
        by_stream = dict(zip(streams, ids, strict=True))
        live = self._kv.grow(streams, len(ids[0]))
        try:
            if live:
                logits = self._logits(live, [by_stream[stream] for stream in live], kind, tokens)
                self._kv.update(live, choose(logits, live), self._eos)
        finally:
            self._kv.end_step()
        return live
