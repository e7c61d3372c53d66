"""Decoding: all live streams, of whatever frames, one token or more further in one batch.

What a stream says next is chosen on the device, where it is also read next: a batch takes several
steps without the host. Source: OxyGen, Algorithm 1.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import torch

from embodied_kv.engine import shapes
from embodied_kv.engine.compression import Compression
from embodied_kv.engine.shapes import COMPILED_QUERY, Kind
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kernels.sampling import sample_tokens
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.manager import KvManager
from embodied_kv.kv.scored import ScoredTailAppend
from embodied_kv.kv.views import TailAppend, rows_read
from embodied_kv.model.pi05 import Pi05
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import StepInputs, longest

log = logging.getLogger(__name__)


def share(stream: DecodeStream, ahead: int = 0) -> float:
    """The number in [0, 1) by which a stream's next token is drawn, `ahead` tokens from now.

    A function of its seed and its token count alone: the state of the random generator is the
    state of the stream. Raises ValueError for a seed that is none.
    """
    philox = np.random.Philox(key=stream.query.seed, counter=len(stream.tokens) + ahead)
    return np.random.Generator(philox).random()


class Decoder:
    """Extends streams, by graphs of so many slots and so many new tokens of each."""

    def __init__(
        self,
        model: Pi05,
        kv: KvManager,
        eos: int,
        config: EngineConfig,
        graphs: GraphCache,
        compression: Compression,
    ) -> None:
        self._model, self._kv, self._eos, self._graphs = model, kv, eos, graphs
        self._compression = compression
        self._slots = shapes.multiples(config.streams, config.batch_multiple)
        if graphs.has_compiler:  # a compiled batch is worth its padding
            self._slots = shapes.doubling(config.streams)
        self._queries = shapes.queries(config.decode_tokens)
        self._most, self._words = config.decode_steps, model.config.backbone.vocab_size
        device = model.device
        self._inputs = StepInputs(device, self._fields())
        self._out = torch.zeros(self._slots[-1], model.config.backbone.vocab_size, device=device)
        # What was chosen and its logit, of each step: [2, steps, slots], float64 for both.
        said = torch.zeros(2 * self._most * self._slots[-1], dtype=torch.float64, device=device)
        self._said = {
            slots: said[: 2 * self._most * slots].view(2, self._most, slots)
            for slots in (1, *self._slots)
        }
        for slots in self._slots:
            view = self._capture(Kind.EXTEND, slots, 1)
            self._capture_draw(view, slots)
        if 1 not in self._slots:
            self._capture_draw(self._view(Kind.EXTEND, 1, 1), 1)
        for tokens in self._queries:
            self._capture(Kind.EXTEND, 1, tokens)
        if compression.is_scored and compression.by != 'row':
            for tokens in self._queries:
                self._capture(Kind.SCORED_EXTEND, 1, tokens)
        is_fast = str(Shape(Kind.EXTEND, 1, COMPILED_QUERY)) in graphs.compiled_names
        self._shortest = COMPILED_QUERY if is_fast else 0  # tokens that a query is padded to

    def _fields(self) -> dict:
        kv = self._kv
        sizes = [(slots, 1) for slots in self._slots] + [(1, n) for n in self._queries]
        arenas = kv.prefixes, kv.decode_kv
        uses = [TailAppend.fields(*arenas, *size, kv.compressed) for size in sizes]
        uses += [ScoredTailAppend.fields(*arenas, 1, n) for n in self._queries]
        slots = self._slots[-1]
        own = {
            'ids': (max(slots, self._queries[-1]), np.int64),
            'temperatures': (slots, np.float64),
            'shares': (self._most * slots, np.float64),
            'step': (1, np.int64),
        }
        return longest([own, *uses])

    def _view(self, kind: Kind, slots: int, tokens: int) -> TailAppend:
        arenas = self._kv.prefixes, self._kv.decode_kv, slots, tokens
        if kind is Kind.SCORED_EXTEND:
            return ScoredTailAppend(*arenas, self._compression.scores, self._inputs)
        return TailAppend(*arenas, self._kv.compressed, self._inputs)

    def _capture(self, kind: Kind, slots: int, tokens: int) -> TailAppend:
        """Tokens -> the next token of each slot, which is also where it is read next."""
        model, kv, scored = self._model, self._kv, kind is Kind.SCORED_EXTEND
        inputs, logits, said = self._inputs, self._out[:slots], self._said[slots]
        number, ids = inputs.cut('step', 1).device, inputs.cut('ids', slots, tokens).device
        view = self._view(kind, slots, tokens)

        def extend(cache: TailAppend) -> None:
            logits.copy_(model.extend(ids, cache))
            scores, chosen = logits.max(-1)
            said.index_copy_(1, number, torch.stack([chosen.double(), scores.double()])[:, None])
            ids[:, 0] = chosen
            number.add_(1)
            cache.advance()

        graph = self._graphs.capture(
            Shape(kind, slots, tokens),
            extend,
            view,
            writes=[
                Buffer('logits', logits),
                Buffer('said', said),
                Buffer('ids', ids),
                Buffer('step', number),
                *(b for b in view.buffers if b.name in ('tail.table', 'positions')),
                *(self._compression.scores.buffers if scored else ()),
            ],
            stores=kv.decode_kv.buffers('decode_kv'),
            reads=[*kv.prefixes.buffers('prefixes'), *kv.compressed.buffers('compressed')],
        )
        return graph.view

    def _capture_draw(self, view: TailAppend, slots: int) -> None:
        """Logits -> another token in place of the greatest, in the slots that are sampled."""
        inputs, logits, said = self._inputs, self._out[:slots], self._said[slots]
        number, ids = inputs.cut('step', 1).device, inputs.cut('ids', slots, 1).device
        temperatures = inputs.cut('temperatures', slots).device
        shares = inputs.cut('shares', self._most, slots).device

        def draw(_: TailAppend) -> None:
            last = (number - 1).clamp(min=0)
            chosen, scores = said.index_select(1, last)[:, 0]
            own = shares.index_select(0, last)[0]
            tokens = sample_tokens(logits, scores, chosen.long(), temperatures, own)
            said[0].index_copy_(0, last, tokens.double()[None])
            ids.copy_(tokens[:, None])

        self._graphs.capture(
            Shape(Kind.DRAW, slots),
            draw,
            view,
            writes=[Buffer('said', said), Buffer('ids', ids)],
            reads=[
                Buffer('logits', logits),
                Buffer('step', number),
                Buffer('temperatures', temperatures),
                Buffer('shares', shares),
            ],
        )

    def padded(self, streams: int) -> int:
        """Slots of a batch of so many streams."""
        return shapes.smallest(self._slots, streams, 'streams', 'raise engine.streams')

    def bucket(self, stream: DecodeStream) -> int:
        """Tokens that a query, and what was answered, is padded to when it is appended."""
        tokens = max(len(stream.query.ids) + len(stream.tokens), self._shortest)
        return shapes.smallest(self._queries, tokens, 'tokens', 'raise engine.decode_tokens')

    def begin(self, stream: DecodeStream) -> list[DecodeStream]:
        """Appends a stream's query and what it said; where it is due, the prefix is compressed.

        Of a new stream, or of one that has said as much as the choice waits for: its tokens are
        computed again, to score. The token that comes next still reads the whole prefix, as in a
        prefill.
        """
        ids = [*stream.query.ids, *stream.tokens]
        decided = self._compression.decide()
        chooses = decided.until_choice(stream) == 0
        scored = chooses and decided.is_scored
        shape = Shape(Kind.SCORED_EXTEND if scored else Kind.EXTEND, 1, self.bucket(stream))
        if scored:
            self._graphs[shape].view.bind_queries([range(len(ids))])
        begun = self._extend([stream], [ids], shape, grows=len(ids) - stream.extent)
        for stream in begun if chooses else ():
            if not stream.reason:
                self._compression.compress_stream(stream, len(ids), decided)
        return begun

    def step(self, streams: Sequence[DecodeStream], steps: int = 1) -> list[DecodeStream]:
        """So many tokens further, at most what each may still say; returns who moved.

        Slots lie as decode rows do: a CPU reads rows in order without moving a query.
        """
        streams = sorted(streams, key=lambda stream: stream.decode_row)
        ids = [[stream.tokens[-1]] for stream in streams]
        return self._extend(streams, ids, Shape(Kind.EXTEND, self.padded(len(streams)), 1), steps)

    def _extend(
        self,
        streams: Sequence[DecodeStream],
        ids: Sequence[Sequence[int]],
        shape: Shape,
        steps: int = 1,
        grows: int = 1,
    ) -> list[DecodeStream]:
        """grows: tokens by which the first step makes a stream's decode KV longer."""
        by_stream = dict(zip(streams, ids, strict=True))
        live = self._kv.streams.grow(streams, grows + steps - 1)
        try:
            if live:
                said = self._run(live, [by_stream[stream] for stream in live], shape, steps)
                self._kv.streams.update(live, said, self._eos)
        finally:
            self._kv.streams.end_step()
        return live

    def _run(
        self,
        streams: Sequence[DecodeStream],
        ids: Sequence[Sequence[int]],
        shape: Shape,
        steps: int,
    ) -> list[list[int | None]]:
        """Appends ids, equally many to each stream -> the tokens that each says then.

        The streams have grown already. None for a token that none could be chosen for.
        """
        count, graph = len(ids[0]), self._graphs[shape]
        told = self._inputs.cut('ids', shape.rows, shape.tokens).host
        faults = self._draws(streams, shape.rows, steps)
        told[:] = 0
        for slot, own in enumerate(ids):
            # An id that is no row of the embedding would end the process on CUDA.
            good = [token if self._is_token(token) else 0 for token in own]
            told[slot, :count] = good
            if good != [*own]:
                faults[slot] = ValueError(f'its tokens must be 0 to {self._words - 1}')
        rows, copies = rows_read([stream.lease for stream in streams])
        tails = [stream.decode_row for stream in streams]
        graph.view.bind(rows, tails, count, copies, steps - 1)
        draws = any(stream.query.temperature > 0 for stream in streams)
        for _ in range(steps):
            graph.replay()
            if draws:
                self._graphs[Shape(Kind.DRAW, shape.rows)].replay()
        tokens, scores = self._said[shape.rows][:, :steps].tolist()
        return [
            _said(stream, [step[slot] for step in tokens], [step[slot] for step in scores], fault)
            for slot, (stream, fault) in enumerate(zip(streams, faults, strict=True))
        ]

    def _is_token(self, token: object) -> bool:
        return isinstance(token, int | np.integer) and 0 <= token < self._words

    def _draws(
        self, streams: Sequence[DecodeStream], slots: int, steps: int
    ) -> list[Exception | None]:
        """Tells how each slot's tokens are chosen; what is wrong with a stream, if anything is."""
        inputs, faults = self._inputs, []
        temperatures = inputs.cut('temperatures', slots).host
        shares = inputs.cut('shares', self._most, slots).host
        temperatures[:], shares[:] = 0, 0
        inputs.cut('step', 1).host[:] = 0
        for slot, stream in enumerate(streams):
            faults.append(None)
            if stream.query.temperature > 0:
                try:
                    shares[:steps, slot] = [share(stream, i) for i in range(steps)]
                    temperatures[slot] = stream.query.temperature
                except Exception as error:  # a fault of this stream is not the others'
                    faults[-1] = error
        return faults


def _said(
    stream: DecodeStream, tokens: Sequence[float], scores: Sequence[float], fault: Exception | None
) -> list[int | None]:
    """A stream's tokens up to one that could not be chosen, which is None, and logged."""
    found: list[int | None] = []
    for token, score in zip(tokens, scores, strict=True):
        if fault is None and not math.isfinite(score):  # the greatest is NaN if any is
            fault = FloatingPointError(f'its logits are not finite: the greatest is {score}')
        if fault is not None:
            log.error('stream %d ended: %s', stream.id, fault)
            return [*found, None]
        found.append(int(token))
    return found
