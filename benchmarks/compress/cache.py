"""One prefill under every compression method: what each method keeps, and its answers.

A frame is prefilled and a question appended once, and all their queries are recorded. From these,
every method gets the exact statistics that it needs, including those that serving does not take.
The copies, the streams and the decoding are the engine's own. Knows frames, questions and ways.
Does not know the true answers.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.compress.early import thinned, tower_attention
from benchmarks.compress.kept import RecordedFrame, RecordedQuestion, kept_by
from benchmarks.compress.scores import (
    RecordedAppend,
    RecordedPrefix,
    RecordedTokens,
    Scorer,
)
from benchmarks.compress.ways import EARLY, ROW, STREAM, Way
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.handle import Lease
from embodied_kv.kv.views import TailAppend, rows_read
from embodied_kv.model.policy import Policy
from embodied_kv.types import Observation

LONGEST_QUERY = 64  # tokens
BATCH = 16  # streams; decode batches are padded to a multiple


@dataclass(frozen=True)
class Answer:
    """An answer and its tokens; kept: share of the prefix's cache that it was read from."""

    text: str
    ids: tuple[int, ...]
    kept: float

    @property
    def tokens(self) -> int:
        return len(self.ids)


class Harness:
    """An engine that answers one question in many ways at once. ways: all that may be used."""

    def __init__(self, policy: Policy, ways: Sequence[Way], max_tokens: int = 32) -> None:
        whole = sum(1.0 if way.method in EARLY else way.keep_ratio for way in ways)
        config = EngineConfig(
            rows=4,
            streams=BATCH * math.ceil((len(ways) + 2) / BATCH),
            decode_tokens=LONGEST_QUERY + max_tokens,
            compressed_rows=2 + math.ceil(2 * whole + 0.1 * len(ways)),
            decode_batch_multiple=BATCH,
            time_budget=False,
        )
        self.engine = Engine(policy, config, policy.config.action_dt)
        self.max_tokens, self.frames = max_tokens, 0
        self._kv, self._policy, self._model = self.engine.kv, policy, policy.model
        self._layers = policy.config.backbone.layers

    # ------------------------------------------------------------------ frames and questions

    @torch.inference_mode()
    def prefill(self, observation: Observation) -> RecordedFrame:
        """Prefill an observation. The caller must `release` it before the next one."""
        o, kv, model = observation, self._kv, self._model
        images = self._policy.images(o.images)
        ids = torch.tensor(self._policy.prompt_ids(o.instruction, o.state), device=model.device)
        image_tokens = model.embed_images(images).flatten(0, 1)
        embeddings = torch.cat([image_tokens, model.embed_tokens(ids)])
        row, n = kv.reserve(time.monotonic()), len(embeddings)
        view = RecordedPrefix(kv.prefixes, 1, n).bind([row], [n])
        model.prefill(embeddings[None], view)
        self.frames += 1
        facts = dict(robot='', sequence=self.frames, stamp=o.stamp, deadline=-math.inf)
        lease = kv.acquire(kv.frames.commit(row, n, **facts))
        keys = [layer[0][row, :, :n] for layer in kv.prefixes.layers]
        scorer = Scorer(RecordedTokens(view.queries, keys))
        tokens, own = (len(image_tokens), len(ids)), kv.prefixes.row(row)
        tower = tower_attention(model, images)
        return RecordedFrame(lease, *tokens, own, embeddings, tower, scorer)

    def release(self, frame: RecordedFrame) -> None:
        """Release the frame; its row and copies are freed with the next frame."""
        frame.lease.release()

    @torch.inference_mode()
    def ask(self, frame: RecordedFrame, text: str) -> RecordedQuestion:
        """Append a question and choose the first token of its answer; `answers` continues it."""
        query = Query(text, self._policy.tokenizer.encode(text), self.max_tokens)
        stream = self._kv.create(frame.lease.handle, query)
        logits, tokens, decode_kv = self._record(stream, query.ids)
        self._update([stream], logits)
        return RecordedQuestion(frame, stream, tokens, decode_kv)

    @torch.inference_mode()
    def record(self, frame: RecordedFrame, ids: Sequence[int]) -> RecordedTokens:
        """Append tokens to the whole prefix, only to record and return their queries and keys."""
        stream = self._kv.create(frame.lease.handle, Query('', ids, 1))
        _, tokens, _ = self._record(stream, ids)
        self._kv.streams.release(stream, 'cancelled')
        self._kv.streams.end_step()
        return tokens

    def _record(
        self, stream: DecodeStream, ids: Sequence[int]
    ) -> tuple[Tensor, RecordedTokens, tuple]:
        logits, view = self._extend([stream], ids, RecordedAppend)
        k, v = (part.clone() for part in self._kv.decode_kv.row(stream.decode_row))
        return logits, RecordedTokens(view.queries, list(k)), (k, v)

    def _extend(
        self,
        streams: Sequence[DecodeStream],
        ids: Sequence[int],
        kind: type[TailAppend] = TailAppend,
    ) -> tuple[Tensor, TailAppend]:
        """Append the same ids to every stream -> logits [streams, vocab]; this begins a step."""
        kv = self._kv
        live = kv.streams.grow(streams, len(ids))
        view = kind(kv.prefixes, kv.decode_kv, len(live), len(ids), kv.compressed)
        rows, copies = rows_read([stream.lease for stream in live])
        view.bind(rows, [stream.decode_row for stream in live], len(ids), copies)
        batch = torch.tensor([list(ids)] * len(live), device=self._model.device)
        return self._model.extend(batch, view), view

    def _update(self, streams: Sequence[DecodeStream], logits: Tensor) -> None:
        said = [[token] for token in logits.argmax(-1).tolist()]
        self._kv.streams.update(streams, said, self._policy.tokenizer.eos)

    # ------------------------------------------------------------------ answers

    @torch.inference_mode()
    def answers(
        self, asked: RecordedQuestion, ways: Sequence[Way | None]
    ) -> dict[Way | None, Answer]:
        """Return the question's greedy answer in every way; None is the whole prefix.

        Ways that keep the same positions share a stream; a way that keeps everything uses the
        whole prefix's. Raises RuntimeError if there is no room for all of them.
        """
        for after in sorted({way.after for way in ways if way} - {0, *asked.begun}):
            asked.begun[after] = self._begun(asked, after)
        whole = self._layers * asked.frame.n
        started: dict[str, DecodeStream] = {}
        taken: dict[Way | None, tuple[DecodeStream, float]] = {}
        for way in ways:
            stream, tokens = asked.stream, whole
            if way is not None:
                kept = kept_by(way, asked.frame, asked)
                tokens = sum(positions.shape[1] for positions in kept)
                if tokens < whole and not _is_over(asked.stream, way):
                    name = _name(way, kept)
                    if name not in started:
                        started[name] = self._start(way, asked, kept, name)
                    stream = started[name]
            taken[way] = stream, tokens / whole
        new = [stream for stream in started.values() if stream.is_new and not stream.reason]
        if new:
            self._update(new, self._extend(new, asked.stream.query.ids)[0])
        texts = self._decode_all()
        begin = len(asked.stream.query.ids)
        return {
            way: Answer(texts[s.id], (*s.query.ids, *s.tokens)[begin:], share)
            for way, (s, share) in taken.items()
        }

    def _start(
        self, way: Way, asked: RecordedQuestion, kept: list[Tensor], name: str
    ) -> DecodeStream:
        """Return a stream that reads the kept positions, at the beginning of its answer."""
        query, said = asked.stream.query, asked.stream.tokens
        if way.method in EARLY or way.by == ROW:
            lease = self._shared_copy(way, asked.frame, kept, name)
            return self._kv.resume(lease, query, ())
        lease = _has_room(self._kv.copies.compress(asked.frame.lease, kept))
        if way.by == STREAM or way.after:
            stream = self._kv.resume(lease, query, said[: way.after + (way.by == STREAM)])
        else:
            *begun, last = query.ids
            query = replace(query, ids=begun, max_tokens=query.max_tokens + 1)
            stream = self._kv.resume(lease, query, [last])
            self.engine.detokenizer.resume(stream, position=1)
        decode_kv = self._kv.decode_kv
        whole = asked.after(way.after).decode_kv
        for part, own in zip((decode_kv.k, decode_kv.v), whole, strict=True):
            part[:, stream.decode_row, :, : stream.extent].copy_(own[:, :, : stream.extent])
        return stream

    def _begun(self, asked: RecordedQuestion, after: int) -> RecordedQuestion:
        """Return the question with the first `after` answer tokens, from the whole, behind it."""
        stream = asked.stream
        while len(stream.tokens) <= after and not stream.reason:
            self._update([stream], self._extend([stream], stream.tokens[-1:])[0])
        ids = (*stream.query.ids, *stream.tokens[:after])
        recorded = self._kv.create(asked.frame.lease.handle, Query('', ids, 1))
        _, tokens, decode_kv = self._record(recorded, ids)
        self._kv.streams.release(recorded, 'cancelled')
        self._kv.streams.end_step()
        return RecordedQuestion(asked.frame, stream, tokens, decode_kv)

    def _shared_copy(self, way: Way, frame: RecordedFrame, kept: list[Tensor], name: str) -> Lease:
        """Return a lease on a copy that all questions about the frame read."""
        kv, handle = self._kv, frame.lease.handle
        if kv.copies.assigned(handle, name) is None:
            if way.method in EARLY:
                copy = self._adopt(frame, [positions[0] for positions in kept])
            else:
                copy = _has_room(kv.copies.compress(frame.lease, kept))
            kv.keep_copy([name], copy)
        return kv.acquire(handle, name)

    def _adopt(self, frame: RecordedFrame, kept: list[Tensor]) -> Lease:
        """Return a compressed row of a prefix that was computed from the kept tokens alone."""
        made, arena = thinned(self._model, frame.embeddings, kept), self._kv.compressed
        budgets = [len(positions) for positions in kept]
        copy = _has_room(self._kv.copies.adopt(budgets, frame.n, frame.lease.handle))
        for layer, own in enumerate(zip(made.keys, made.values, strict=True)):
            for part, values in zip(arena.piece(layer, copy.row), own, strict=True):
                part.copy_(values)
        return copy

    def _decode_all(self) -> dict[int, str]:
        """Decode all streams to their end, and return the text of each by its id."""
        texts: dict[int, str] = defaultdict(str)
        while self._kv.streams.live():
            for delta in self.engine.decode():
                texts[delta.stream] += delta.text
                if delta.reason == 'evicted':
                    raise RuntimeError('an answer was cut off: there are more ways than streams')
        for delta in self.engine.deltas():
            texts[delta.stream] += delta.text
        return texts


def _is_over(stream: DecodeStream, way: Way) -> bool:
    """Return whether an answer ended before the compression, so that it read only the whole."""
    whole = way.after + (way.by == STREAM)  # answer tokens that read the whole prefix
    return bool(stream.reason) and len(stream.tokens) + (stream.reason == 'eos') <= whole


def _name(way: Way, kept: list[Tensor]) -> str:
    """Return a name, equal for ways whose streams give equal answers to any question."""
    digest = hashlib.sha256(repr([positions.shape[1] for positions in kept]).encode())
    for positions in kept:
        digest.update(positions.cpu().numpy().tobytes())
    if way.method in EARLY:
        return f'{way.method} {digest.hexdigest()}'
    return f'{way.by} {way.after} {digest.hexdigest()}'


def _has_room(copy: Lease | None) -> Lease:
    if copy is None:
        raise RuntimeError('no room for a copy: a harness has room for the ways it was made for')
    return copy
