"""Who reads compressed prefixes, how strongly compressed, and what their tokens are chosen by.

Language: by stream, from each question as it is appended; by row, once for a frame, from the
prompt's own text; or by text, from both. By stream and by text the first tokens of an answer may
be waited for, and score as well (deferred choice). Actions: by row, as they ask nothing. A keep
ratio of 1 is no compression: nothing is scored or copied. Knows methods, scores and the manager;
the choice itself is `compress`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from embodied_kv.compress.base import Statistics
from embodied_kv.compress.budget import check_keep_ratio, scoring_queries, total_budget
from embodied_kv.compress.registry import method
from embodied_kv.config import ModelConfig
from embodied_kv.engine.compression import PromptScores
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.manager import LANGUAGE, KvManager
from embodied_kv.kv.scored import Scores
from embodied_kv.text import trace
from embodied_kv.throttle import Throttled

ACTION = 'action'


@dataclass(frozen=True)
class Decisions:
    """How one frame, or one question, is compressed: taken when it begins, and passed down.

    A question whose choice is deferred is compressed as is decided when its choice is due.

    keep_ratios: by consumer, the share of the cache that it keeps. by: as
    `EngineConfig.compress_by`. after: tokens of an answer that come before the choice. is_scored:
    the method ranks by attention, and there is room for what it chooses.
    """

    keep_ratios: Mapping[str, float]
    by: str
    after: int
    is_scored: bool

    @property
    def by_row(self) -> dict[str, float]:
        """Keep ratios of the consumers whose frames are compressed once for all."""
        readers = (ACTION, LANGUAGE) if self.by == 'row' else (ACTION,)
        return {
            reader: self.keep_ratios[reader] for reader in readers if self.keep_ratios[reader] < 1
        }

    @property
    def by_question(self) -> bool:
        """Whether each stream is compressed, by its question and the beginning of its answer."""
        return self.by != 'row' and self.keep_ratios[LANGUAGE] < 1

    def until_choice(self, stream: DecodeStream) -> int | None:
        """Tokens that a stream still says before it is compressed.

        None: that is behind it, or never comes.
        """
        left = self.after - len(stream.tokens)
        return left if self.by_question and left >= 0 and not stream.lease.is_copy else None

    @property
    def keeps_prompt(self) -> bool:
        """Whether the scores of a frame's own text are kept for its questions."""
        return self.is_scored and self.by == 'text' and self.by_question

    @property
    def scores_frame(self) -> bool:
        """Whether a prefill is to be scored."""
        return self.is_scored and bool(self.by_row or self.keeps_prompt)


class Compression:
    """keep_ratios: by consumer, the share of the cache that it keeps; see `set_keep_ratio`."""

    def __init__(self, kv: KvManager, model: ModelConfig, config: EngineConfig) -> None:
        self._kv, b = kv, model.backbone
        self._layers, self._kv_heads = b.layers, b.kv_heads
        self.method, self.by = (
            method(config.compress, shares=config.compress_shares),
            config.compress_by,
        )
        self._after = config.compress_after
        self.method.check(b.heads, b.kv_heads, b.head_dim, model.prefix_tokens)
        if self.by != 'row' and self.method.queries not in (None, 'post_vision'):
            raise ValueError(
                f'{self.method.name} is scored by queries of the prefix itself: set '
                'engine.compress_by to row'
            )
        self.keep_ratios = {LANGUAGE: 1.0, ACTION: 1.0}
        self.set_keep_ratio(LANGUAGE, config.language_keep_ratio)
        self.set_keep_ratio(ACTION, config.action_keep_ratio)
        self.max_queries = {'window': self.method.window, 'all': model.prefix_tokens}.get(
            self.method.queries, model.max_text
        )
        self.prompts = PromptScores(kv)
        self._faults = Throttled(logging.getLogger(__name__).error)
        self.scores = Scores(
            config.robots,
            b.layers,
            b.heads,
            model.prefix_tokens,
            self.method.p,
            kv.prefixes.device,
        )

    def set_keep_ratio(self, consumer: str, keep_ratio: float) -> None:
        """From the next frame or question on, and for answers that wait for their choice.

        Raises ValueError as `check` does.
        """
        self.check(consumer, keep_ratio)
        self.keep_ratios[consumer] = keep_ratio

    def check(self, consumer: str, keep_ratio: float) -> None:
        """Raises ValueError for a share out of range, and for what has no room."""
        check_keep_ratio(keep_ratio)
        if consumer not in self.keep_ratios:
            raise ValueError(f'no consumer {consumer!r}; there are: {", ".join(self.keep_ratios)}')
        if keep_ratio < 1 and not self._kv.compressed.tokens:
            raise ValueError(
                f'{consumer} cannot read compressed prefixes: engine.compressed_rows is 0, so '
                'there is no room for any'
            )

    # ------------------------------------------------------------------ scoring

    @property
    def is_scored(self) -> bool:
        """Whether the method ranks by attention at all, and there is room for what it chooses."""
        return self.method.queries is not None and self._kv.compressed.tokens > 0

    def decide(self) -> Decisions:
        """What holds for a frame, or a question, that begins; keep ratios may change meanwhile."""
        return Decisions(dict(self.keep_ratios), self.by, self._after, self.is_scored)

    def prompt_queries(self, prefix: int, text: int) -> range:
        """Positions of the queries that score a prefix whose last `text` tokens are text."""
        return scoring_queries(self.method.queries, prefix, text, window=self.method.window)

    # ------------------------------------------------------------------ compressing

    def compress_frame(
        self, handle: KvHandle, slot: int, queries: int, decided: Decisions
    ) -> None:
        """Make the copies that consumers of this frame share; slot: of the prefill's batch.

        Where the method fails, its consumers read the row (`CompressedPool.scoring_failures`
        counts).
        """
        if decided.keeps_prompt:
            with self._failing_alone(handle):
                self.prompts.keep(handle, self._statistics(slot, handle.length, queries))
        wanted = decided.by_row
        for keep_ratio in set(wanted.values()):
            with self._failing_alone(handle):
                stats = self._statistics(slot, handle.length, queries)
                with self._kv.acquire(handle) as lease:
                    copy = self._compress(lease, stats, keep_ratio)
                if copy is not None:
                    readers = [consumer for consumer in wanted if wanted[consumer] == keep_ratio]
                    self._kv.keep_copy(readers, copy)

    def compress_stream(self, stream: DecodeStream, queries: int, decided: Decisions) -> None:
        """A stream goes on reading a copy of its own, chosen by what was appended last.

        queries: how many tokens that was. Where there is no room, or the method fails, it goes on
        reading the row (`CompressedPool.allocation_failures` and `scoring_failures` count).
        """
        handle = stream.lease.handle
        with self._failing_alone(handle):
            stats = self._statistics(0, handle.length, queries)
            if decided.by == 'text':
                stats = self.prompts.added(handle, stats)
            copy = self._compress(stream.lease, stats, decided.keep_ratios[LANGUAGE])
            if copy is not None:
                self._kv.streams.hold_copy(stream, copy)

    @contextmanager
    def _failing_alone(self, handle: KvHandle) -> Iterator[None]:
        """Count and log a failure within the block: it costs a copy, and nothing else."""
        try:
            yield
        except Exception as error:
            self._kv.copies.scoring_failures += 1
            self._faults(
                'method',
                f'compression method {self.method.name} failed for frame {handle.sequence} of '
                f'robot {handle.robot!r}; the whole prefix is read\n{trace(error)}',
            )

    def _compress(self, lease: Lease, stats: Statistics, keep_ratio: float) -> Lease | None:
        """A lease on the copy; None if nothing is left out, or there is no room."""
        n = lease.handle.length
        if total_budget(keep_ratio, self._layers, n) == self._layers * n:
            return None
        if self.method.reads_kv:
            keys, values = self._kv.prefixes.row(lease.row)
            stats = replace(stats, keys=keys, values=values)
        kept = self.method.select(stats, keep_ratio)
        if sum(positions.shape[1] for positions in kept) == self._layers * n:
            return None
        return self._kv.copies.compress(lease, kept)

    def _statistics(self, slot: int, n: int, queries: int) -> Statistics:
        if self.method.queries is None:
            return Statistics.unscored(self._layers, self._kv_heads, n, self._kv.prefixes.device)
        columns = self.scores.columns[slot, :, :, :n]
        return Statistics(columns, self.scores.density[slot], self._kv_heads, queries)
