"""The positions of a frame that each way keeps, from the exact statistics that its method needs.

Knows a recorded frame and question. Does not know rows or streams.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from benchmarks.compress.early import fastv_kept, hired_kept
from benchmarks.compress.fastv import FastV
from benchmarks.compress.scores import RecordedTokens, Scorer, attention
from benchmarks.compress.ways import EARLY, ROW, STREAM, STRICT, TEXT, Way
from embodied_kv.compress.base import Method, Statistics, scoring_queries
from embodied_kv.compress.registry import method
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import Lease


@dataclass(frozen=True, eq=False)
class RecordedFrame:
    """A frame in its row: `vision` image tokens, then `text` tokens.

    kv: its K and V, [layers, kv_heads, n, head_dim]. embeddings: [n, width]. tower:
    `early.tower_attention` of its views.
    """

    lease: Lease
    vision: int
    text: int
    kv: tuple[Tensor, Tensor]
    embeddings: Tensor
    tower: tuple[Tensor, Tensor]
    scorer: Scorer
    memory: dict[object, object] = field(default_factory=dict)  # results by row

    @property
    def n(self) -> int:
        return self.vision + self.text


@dataclass(frozen=True, eq=False)
class RecordedQuestion:
    """A question behind the whole prefix.

    stream: answers the question from the whole prefix. decode_kv: K and V of the question,
    [layers, kv_heads, tokens, head_dim].
    """

    frame: RecordedFrame
    stream: DecodeStream
    tokens: RecordedTokens
    decode_kv: tuple[Tensor, Tensor]
    memory: dict[object, object] = field(default_factory=dict)  # results by question
    # By a number of answer tokens: the question with these tokens behind it.
    begun: dict[int, RecordedQuestion] = field(default_factory=dict)

    def after(self, tokens: int) -> RecordedQuestion:
        """Return the question with `tokens` answer tokens behind it, or all if there are fewer."""
        return self.begun[tokens] if tokens else self


def rule(way: Way, frame: RecordedFrame) -> Method:
    """Return the way's method; a random one has another seed for every frame."""
    seed = {'seed': frame.lease.handle.sequence} if way.method == 'random' else {}
    return method(way.method.removesuffix(TEXT), p=way.p, shares=way.shares, **seed)


def statistics(
    way: Way, frame: RecordedFrame, asked: RecordedQuestion | None = None
) -> Statistics:
    """Return the statistics that the way's method gets; asked: not needed by row."""
    scoring, question = rule(way, frame), None if way.by == ROW else asked.tokens
    behind = 0 if question is None else len(question)
    if way.method.endswith(TEXT):  # the prompt's own queries, and then all of a question
        prompt = scoring_queries(scoring.queries, frame.n, frame.text)
        queries = range(prompt.start, frame.n + behind)
    else:
        queries = scoring_queries(scoring.queries, frame.n, frame.text, behind, scoring.window)
    memory = frame.memory if question is None else asked.memory
    if (queries, way.p) not in memory:
        memory[queries, way.p] = frame.scorer.statistics(queries, way.p, question)
    return memory[queries, way.p]


def kept_by(way: Way, frame: RecordedFrame, asked: RecordedQuestion | None = None) -> list[Tensor]:
    """Return the positions that each layer keeps, int64 [kv_heads, tokens].

    asked: not needed by row.
    """
    if way.by != ROW:
        asked = asked.after(way.after)
    memory = frame.memory if way.by == ROW else asked.memory
    key = replace(way, by=STRICT) if way.by == STREAM else way  # these two keep the same
    if key not in memory:
        memory[key] = _select(way, frame, asked)
    return memory[key]


def _select(way: Way, frame: RecordedFrame, asked: RecordedQuestion | None) -> list[Tensor]:
    if way.method in EARLY:
        heads = frame.scorer.prefix.keys[0].shape[0]
        return [positions.expand(heads, -1) for positions in _early(way, frame, asked)]
    scoring, stats = rule(way, frame), statistics(way, frame, asked)
    if scoring.reads_kv:
        keys, values = frame.kv
        stats = replace(stats, keys=keys, values=values)
    return scoring.select(stats, way.keep_ratio)


def _early(way: Way, frame: RecordedFrame, asked: RecordedQuestion | None) -> list[Tensor]:
    """Return what a method keeps that drops tokens early: int64 [tokens] of each layer."""
    prefix = frame.scorer.prefix
    sizes = len(prefix.keys), frame.vision, frame.text
    if way.method == 'hired':
        return hired_kept(way.keep_ratio, *sizes, *frame.tower)
    layer = FastV().drop_after - 1
    keys = prefix.keys[layer]
    if way.by == ROW:
        last, own = prefix.queries[layer][-1:], keys[:, :0]
    else:
        last, own = asked.tokens.queries[layer][-1:], asked.tokens.keys[layer]
    weights = attention(last, keys, own, start=own.shape[1])[:, 0]
    return fastv_kept(way.keep_ratio, *sizes, weights)
