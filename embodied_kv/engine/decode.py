"""Batched decoding: one batch extends all live streams, of any frames, by one or more tokens.

The device selects the next token of a stream and reads it in the next step, so that a batch takes
several steps without the host. Source: OxyGen, Algorithm 1.
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
from embodied_kv.engine.time_budget import TimeBudget
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kernels import sampling
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.manager import KvManager
from embodied_kv.kv.scored import ScoredTailAppend
from embodied_kv.kv.views import TailAppend, rows_read
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.tokenizer import StreamDecoder, Tokenizer
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import Fields, StepInputs, longest
from embodied_kv.types import TextDelta

log = logging.getLogger(__name__)


def share(stream: DecodeStream, ahead: int = 0) -> float:
    """Return the random number in [0, 1) that draws the token `ahead` after a stream's next one.

    Raises ValueError for an invalid seed.
    """
    return sampling.share(stream.query.seed, len(stream.tokens) + ahead)


class Decoder:
    """Extends streams, with one graph for each number of slots and of new tokens per slot."""

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
        self._slots = shapes.multiples(config.streams, config.decode_batch_multiple)
        if graphs.has_compiler:  # a compiled batch is faster despite its padding
            self._slots = shapes.doubling(config.streams)
        self._queries = shapes.queries(config.decode_tokens)
        self._capacity = shapes.copy_capacity(model.config, config, config.language_keep_ratio)
        self._most, self._words = config.decode_steps, model.config.backbone.vocab_size
        device = model.device
        self._inputs = StepInputs(device, self._fields())
        self._out = torch.zeros(self._slots[-1], model.config.backbone.vocab_size, device=device)
        # Chosen tokens and their logits, of each step: float64 [2, steps, slots].
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
        self._shortest = COMPILED_QUERY if is_fast else 0  # lower bound of a query's padded length

    def _fields(self) -> Fields:
        kv = self._kv
        sizes = [(slots, 1) for slots in self._slots] + [(1, n) for n in self._queries]
        arenas = kv.prefixes, kv.decode_kv
        uses = [TailAppend.fields(*arenas, *size, kv.compressed) for size in sizes]
        uses += [ScoredTailAppend.scoring_fields(1, n) for n in self._queries]
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
        return TailAppend(*arenas, self._kv.compressed, self._inputs, self._capacity)

    def _capture(self, kind: Kind, slots: int, tokens: int) -> TailAppend:
        """Capture the graph that computes the next tokens and writes them into its own input."""
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
        """Capture the graph that replaces the greedy token of each slot that samples."""
        inputs, logits, said = self._inputs, self._out[:slots], self._said[slots]
        number, ids = inputs.cut('step', 1).device, inputs.cut('ids', slots, 1).device
        temperatures = inputs.cut('temperatures', slots).device
        shares = inputs.cut('shares', self._most, slots).device

        def draw(_: TailAppend) -> None:
            last = (number - 1).clamp(min=0)
            chosen, scores = said.index_select(1, last)[:, 0]
            own = shares.index_select(0, last)[0]
            tokens = sampling.sample_tokens(logits, scores, chosen.long(), temperatures, own)
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
        """Return the slots of a batch of so many streams."""
        return shapes.smallest(self._slots, streams, 'streams', 'raise engine.streams')

    def most_within(self, budget: TimeBudget, streams: int) -> int:
        """Return how many of so many streams a step decodes; see `TimeBudget.largest`."""
        return min(streams, budget.largest('decode', self.sizes(streams))) if streams else 0

    def sizes(self, streams: int) -> Sequence[int]:
        """Return the slots of all batches of at most so many streams, ascending."""
        return self._slots[: self._slots.index(self.padded(streams)) + 1]

    def bucket(self, stream: DecodeStream) -> int:
        """Return the padded number of tokens of a stream's query and answer so far."""
        tokens = max(len(stream.query.ids) + len(stream.tokens), self._shortest)
        return shapes.smallest(self._queries, tokens, 'tokens', 'raise engine.decode_tokens')

    def begin(self, stream: DecodeStream) -> list[DecodeStream]:
        """Append a stream's query and answer so far, and compress its prefix when that is due.

        The stream is new, or its answer has the length for which a deferred choice waits: its
        tokens are then computed again, to score. The next token still reads the whole prefix.
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
        """Generate up to `steps` tokens of each live stream; return these streams.

        Slots are in the order of decode rows, so a CPU reads rows in order without moving a query.
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
        """Run a step of streams; grows: tokens that its first replay adds to their decode KV."""
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
        """Append ids, equally many to each stream, and return the tokens that each generates.

        The decode rows must have grown before. None stands for a token that cannot be chosen.
        """
        count, graph = len(ids[0]), self._graphs[shape]
        host_ids = self._inputs.cut('ids', shape.rows, shape.tokens).host
        faults = self._draws(streams, shape.rows, steps)
        host_ids[:] = 0
        for slot, own in enumerate(ids):
            # An id beyond the rows of the embedding would end the process on CUDA.
            good = [
                token if isinstance(token, int | np.integer) and 0 <= token < self._words else 0
                for token in own
            ]
            host_ids[slot, :count] = good
            if good != [*own]:
                faults[slot] = ValueError(f'tokens of the query must be 0 to {self._words - 1}')
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

    def _draws(
        self, streams: Sequence[DecodeStream], slots: int, steps: int
    ) -> list[Exception | None]:
        """Set how each slot's tokens are chosen, and return the fault of each stream, or None."""
        faults: list[Exception | None] = [None] * len(streams)
        inputs = self._inputs
        temperatures = inputs.cut('temperatures', slots).host
        shares = inputs.cut('shares', self._most, slots).host
        temperatures[:], shares[:] = 0, 0
        inputs.cut('step', 1).host[:] = 0
        for slot, stream in enumerate(streams):
            if stream.query.temperature > 0:
                try:
                    shares[:steps, slot] = [share(stream, i) for i in range(steps)]
                    temperatures[slot] = stream.query.temperature
                except Exception as error:  # it must not end the other streams
                    faults[slot] = error
        return faults


def _said(
    stream: DecodeStream, tokens: Sequence[float], scores: Sequence[float], fault: Exception | None
) -> list[int | None]:
    """Return a stream's tokens up to the first that cannot be chosen: None, which is logged."""
    found: list[int | None] = []
    for token, score in zip(tokens, scores, strict=True):
        if fault is None and not math.isfinite(score):  # the maximum is NaN if any logit is
            fault = FloatingPointError(f'logits must be finite (got a maximum of {score})')
        if fault is not None:
            log.error('Stream %d ended: %s', stream.id, fault)
            return [*found, None]
        found.append(int(token))
    return found


class Detokenizer:
    """The text of every live stream that has generated tokens; a character may span tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoders: dict[int, tuple[StreamDecoder, int]] = {}  # with the tokens decoded so far

    def __len__(self) -> int:
        """Return the number of streams with text."""
        return len(self._decoders)

    def position(self, stream: int) -> int:
        """Return the number of a stream's tokens whose text was handed out."""
        return self._decoders[stream][1] if stream in self._decoders else 0

    def said(self, stream: DecodeStream) -> str:
        """Return the text of a stream that was handed out, also that before a capsule of it."""
        return StreamDecoder(self._tokenizer).feed(stream.tokens[: self.position(stream.id)])

    def resume(self, stream: DecodeStream, position: int) -> None:
        """Continue a stream whose first `position` tokens were handed out as text."""
        decoder = StreamDecoder(self._tokenizer)
        decoder.feed(stream.tokens[:position])
        self._decoders[stream.id] = decoder, position

    def delta(self, stream: DecodeStream, reason: str = '') -> TextDelta:
        """Return the new text of a stream. reason: why it has ended, '' while it lives."""
        known = self._decoders.pop(stream.id, None)
        decoder, position = known or (StreamDecoder(self._tokenizer), 0)
        text = decoder.feed(stream.tokens[position:])
        if reason:
            text += decoder.finish()
        else:
            self._decoders[stream.id] = decoder, len(stream.tokens)
        handle, query = stream.lease.handle, stream.query.text
        frame = handle.sequence, handle.stamp
        return TextDelta(stream.id, *frame, query, text, len(stream.tokens), reason)
