"""Which consumers read compressed prefixes, at which keep ratio, and which queries score them.

`engine.compression_queries` selects what scores a prefix for language: each question as it is
appended (stream), queries of the prefix itself, once per frame (row), or both (text). With stream
and text the choice of tokens may wait for the first tokens of an answer, which score as well
(deferred choice). Actions use row, because they have no question. With a keep ratio of 1 nothing
is scored or copied. A state token is always kept. Projected keys and values keep the tokens of
their backbone layer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from embodied_kv.compress.base import Statistics, scoring_queries
from embodied_kv.compress.budget import check_keep_ratio, total_budget
from embodied_kv.compress.registry import method
from embodied_kv.config import ModelConfig
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.budget import OverBudgetError
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.manager import LANGUAGE, KvManager
from embodied_kv.kv.scored import Scores
from embodied_kv.text import trace
from embodied_kv.throttle import Throttled

ACTION = 'action'


@dataclass(frozen=True)
class Decisions:
    """The compression settings of one frame or question, fixed when it begins.

    For a question with a deferred choice they are fixed when the choice is due. keep_ratios: share
    of the cache that each consumer keeps. by: as `EngineConfig.compression_queries`. after: tokens
    of an answer before the choice. is_scored: the method ranks by attention, and there is memory
    for compressed copies. remembers: some tokens of some frames are kept as memory rows.
    """

    keep_ratios: Mapping[str, float]
    by: str
    after: int
    is_scored: bool
    remembers: bool

    @classmethod
    def at_start(cls, config: EngineConfig) -> Decisions:
        """Return the decisions by the parameters of the engine."""
        keep_ratios = {LANGUAGE: config.language_keep_ratio, ACTION: config.action_keep_ratio}
        is_scored = method(config.compression_method).queries is not None
        return cls(
            keep_ratios,
            config.compression_queries,
            config.compression_after_tokens,
            is_scored and config.has_copies,
            _remembers(config),
        )

    @property
    def by_row(self) -> dict[str, float]:
        """Return the keep ratio of each consumer for which a frame is compressed once."""
        readers = (ACTION, LANGUAGE) if self.by == 'row' else (ACTION,)
        return {
            reader: self.keep_ratios[reader] for reader in readers if self.keep_ratios[reader] < 1
        }

    @property
    def by_question(self) -> bool:
        """Return whether each stream is compressed, by its question and its first tokens."""
        return self.by != 'row' and self.keep_ratios[LANGUAGE] < 1

    def until_choice(self, stream: DecodeStream) -> int | None:
        """Return the tokens that a stream generates before its choice; None if none is due."""
        left = self.after - len(stream.tokens)
        return left if self.by_question and left >= 0 and not stream.lease.is_copy else None

    @property
    def keeps_prompt(self) -> bool:
        """Return whether the scores of a frame's own text are kept for its questions."""
        by_text = self.by == 'text' and self.by_question
        return self.is_scored and (by_text or self.remembers)

    @property
    def scores_frame(self) -> bool:
        """Return whether a prefill is scored."""
        return self.is_scored and bool(self.by_row or self.keeps_prompt)


class Compression:
    """The compression of an engine. keep_ratios: share of the cache that each consumer keeps."""

    def __init__(self, kv: KvManager, model: ModelConfig, config: EngineConfig) -> None:
        self._kv, b = kv, model.backbone
        self._layers, self._kv_heads, self._states = b.layers, b.kv_heads, model.state_tokens
        self._projected = model.cross_layers
        self.method = method(config.compression_method, shares=config.compression_layer_budgets)
        self.by, self._after = config.compression_queries, config.compression_after_tokens
        self._remembers = _remembers(config)
        self.method.validate_model(b.heads, b.kv_heads, b.head_dim, model.prefix_tokens)
        if self.by != 'row' and self.method.queries not in (None, 'post_vision'):
            raise ValueError(
                f'engine.compression_queries must be row for {self.method.name}, which is scored '
                f'by queries of the prefix itself (got {self.by})'
            )
        self.keep_ratios = {LANGUAGE: 1.0, ACTION: 1.0}
        self.set_keep_ratio(LANGUAGE, config.language_keep_ratio)
        self.set_keep_ratio(ACTION, config.action_keep_ratio)
        self.max_queries = {'window': self.method.window, 'all': model.prefix_tokens}.get(
            self.method.queries or '', model.max_text
        )
        self.prompts = PromptScores(kv)
        self._faults = Throttled(logging.getLogger(__name__).error)
        self.scores = Scores(
            config.max_batch_robots,
            b.layers,
            b.heads,
            model.prefix_tokens,
            self.method.p,
            kv.prefixes.device,
        )

    def set_keep_ratio(self, consumer: str, keep_ratio: float) -> None:
        """Set a keep ratio for later frames and questions, and for deferred choices.

        Raises ValueError for an unknown consumer, a ratio out of range, or a ratio below 1 without
        memory for compressed copies.
        """
        self.validate_keep_ratio(consumer, keep_ratio)
        self.keep_ratios[consumer] = keep_ratio

    def validate_keep_ratio(self, consumer: str, keep_ratio: float) -> None:
        """Raise ValueError as `set_keep_ratio` does."""
        check_keep_ratio(keep_ratio)
        if consumer not in self.keep_ratios:
            names = ', '.join(self.keep_ratios)
            raise ValueError(f'consumer must be one of {names} (got {consumer!r})')
        if keep_ratio < 1 and not self._kv.compressed.tokens:
            raise ValueError(
                f'engine.compressed_rows must be at least 1 for {consumer} to read compressed '
                'prefixes (got 0)'
            )

    # ------------------------------------------------------------------ scoring

    @property
    def is_scored(self) -> bool:
        """Return whether the method ranks by attention, and there is memory for copies."""
        return self.method.queries is not None and self._kv.compressed.tokens > 0

    def decide(self) -> Decisions:
        """Return the decisions for a frame or question that begins now."""
        settings = self.by, self._after, self.is_scored, self._remembers
        return Decisions(dict(self.keep_ratios), *settings)

    def prompt_queries(self, prefix: int, text: int) -> range:
        """Return the positions that score a prefix whose last `text` tokens are text."""
        return scoring_queries(self.method.queries, prefix, text, window=self.method.window)

    # ------------------------------------------------------------------ compressing

    def compress_frame(
        self, handle: KvHandle, slot: int, queries: int, decided: Decisions
    ) -> None:
        """Make the copies that consumers of this frame share. slot: in the batch of the prefill.

        If the method fails, the consumers read the row (`CompressedPool.scoring_failures` counts).
        """
        if decided.keeps_prompt:
            with self.failing_alone(handle):
                self.prompts.attach(handle, self._statistics(slot, handle, queries))
        wanted = decided.by_row
        for keep_ratio in set(wanted.values()):
            with self.failing_alone(handle):
                stats = self._statistics(slot, handle, queries)
                with self._kv.acquire(handle) as lease:
                    copy = self._compress(lease, stats, keep_ratio)
                if copy is not None:
                    readers = [consumer for consumer in wanted if wanted[consumer] == keep_ratio]
                    self._kv.keep_copy(readers, copy)

    def compress_stream(self, stream: DecodeStream, queries: int, decided: Decisions) -> None:
        """Let a stream read its own compressed copy, scored by the last `queries` appended tokens.

        Without room, or if the method fails, the stream reads the row
        (`CompressedPool.allocation_failures` and `scoring_failures` count).
        """
        handle = stream.lease.handle
        with self.failing_alone(handle):
            stats = self._statistics(0, handle, queries)
            if decided.by == 'text':
                stats = self.prompts.added(handle, stats)
            copy = self._compress(stream.lease, stats, decided.keep_ratios[LANGUAGE])
            if copy is not None:
                self._kv.streams.hold_copy(stream, copy)

    @contextmanager
    def failing_alone(
        self, handle: KvHandle, what: str = '', instead: str = 'the whole prefix is read'
    ) -> Iterator[None]:
        """Count and log an error within the context; only a copy or memory row is missing then.

        what: the work that fails, for the message; '': that of the compression method. instead:
        the consequence.
        """
        try:
            yield
        except Exception as error:
            self._kv.copies.scoring_failures += 1
            failed = what or f'Compression method {self.method.name}'
            self._faults(
                what or 'method',
                f'{failed} failed for frame {handle.sequence} of robot {handle.robot!r}; '
                f'{instead}.\n{trace(error)}',
            )

    def _compress(self, lease: Lease, stats: Statistics, keep_ratio: float) -> Lease | None:
        """Return a lease on the copy; None if all tokens are kept or there is no room."""
        n = lease.handle.length - self._states
        if total_budget(keep_ratio, self._layers, n) == self._layers * n:
            return None
        kept = self._select(lease, stats, keep_ratio)
        if sum(positions.shape[1] for positions in kept) == self._layers * n:
            return None
        if self._states:
            kept = [functional.pad(positions, (0, self._states), value=n) for positions in kept]
        kept = [*kept, *(kept[layer] for layer in self._projected)]
        return self._kv.copies.compress(lease, kept)

    def kept_tokens(self, lease: Lease, keep_ratio: float) -> list[Tensor] | None:
        """Return the positions that a memory row keeps of a leased row, without a state token.

        int64 [kv_heads, n] of each layer. The frame's own text scores them; None without the
        scores.
        """
        n = lease.handle.length - self._states
        whole = torch.arange(n, device=self._kv.prefixes.device).expand(self._kv_heads, -1)
        stats = self.prompts.get(lease.handle)
        if self.method.queries is None:
            stats = Statistics.unscored(self._layers, self._kv_heads, n, whole.device)
        if total_budget(keep_ratio, self._layers, n) == self._layers * n:
            return [whole] * self._layers
        return None if stats is None else list(self._select(lease, stats, keep_ratio))

    def _select(self, lease: Lease, stats: Statistics, keep_ratio: float) -> Sequence[Tensor]:
        if self.method.reads_kv:
            n = lease.handle.length - self._states
            row = self._kv.prefixes.row(lease.row)
            keys, values = (part[: self._layers, :, :n] for part in row)
            stats = replace(stats, keys=keys, values=values)
        return self.method.select(stats, keep_ratio)

    def _statistics(self, slot: int, handle: KvHandle, queries: int) -> Statistics:
        n = handle.length - self._states
        if self.method.queries is None:
            return Statistics.unscored(self._layers, self._kv_heads, n, self._kv.prefixes.device)
        columns = self.scores.columns[slot, :, :, :n]
        return Statistics(columns, self.scores.density[slot], self._kv_heads, queries)


def _remembers(config: EngineConfig) -> bool:
    return config.memory_rows > 0 and config.memory_keep_ratio < 1


class PromptScores:
    """Statistics of the prompts of frames, counted and freed with their prefix rows.

    `added` combines them with those of a question. Source: VL-Cache, section 4.1: all text behind
    the images scores them, of the prompt and of the question.
    """

    def __init__(self, kv: KvManager) -> None:
        self._frames, self._kv_budget, self._copies = kv.frames, kv.budget, kv.copies

    @staticmethod
    def most_bytes(model: ModelConfig) -> int:
        """Return the bytes of the longest prefix's statistics, float32."""
        b = model.backbone
        return 4 * b.layers * b.heads * (model.prefix_tokens + 1)

    def attach(self, handle: KvHandle, prompt: Statistics) -> None:
        """Keep a copy of a frame's statistics, because the next prefill reuses their buffers.

        Nothing is kept if the KV budget has no room (`CompressedPool.allocation_failures` counts),
        or if the frame no longer exists.
        """
        size = prompt.columns.nbytes + prompt.density.nbytes
        try:
            with self._kv_budget.claim(self._frames, size, cost=0.0):
                own = replace(
                    prompt, columns=prompt.columns.clone(), density=prompt.density.clone()
                )
                self._frames.attach(handle, own, size)
        except OverBudgetError:
            self._copies.allocation_failures += 1

    def get(self, handle: KvHandle) -> Statistics | None:
        """Return the statistics of this frame, or None."""
        return cast(Statistics | None, self._frames.attached(handle))

    def added(self, handle: KvHandle, question: Statistics) -> Statistics:
        """Return the question's statistics, with those of the prompt if they are kept.

        Columns are summed. Densities are averaged by visible entries: a query of the prompt sees
        the prefix, and one of the question also sees the question up to itself.
        """
        prompt = self.get(handle)
        if prompt is None:
            return question
        m, n = question.queries, question.n
        own, others = m * n + m * (m + 1) // 2, prompt.queries * n  # visible entries
        density = torch.lerp(question.density, prompt.density, others / (own + others))
        columns = question.columns + prompt.columns
        return replace(question, columns=columns, density=density, queries=m + prompt.queries)
