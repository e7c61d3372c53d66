"""The parameters of the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial

from embodied_kv.config import ModelConfig
from embodied_kv.parameter import parameter

COMPILE = ('off', 'auto', 'now')
RTC_SCHEDULES = ('linear', 'exponential', 'ones', 'zeros')


_param = partial(parameter, when='start')  # more: choices, fix (a remedy), old (former name)


@dataclass(frozen=True)
class EngineConfig:
    """The memory and time of the engine; each field is a ROS parameter `engine.NAME`.

    Raises ValueError for a value out of its range and for parameters that contradict each other.
    """

    max_batch_robots: int = _param(
        1,
        'Largest number of robots in a batch of prefill or denoising',
        range=(1, 256),
        old=('robots',),
    )
    rows: int = _param(16, 'Prefix rows in the arena', range=(3, 4096))
    reserved_rows: int = _param(2, 'Prefix rows that language must not hold', range=(2, 64))
    streams: int = _param(16, 'Largest number of decode streams', range=(1, 4096))
    decode_tokens: int = _param(
        96, 'Tokens of a stream: query and answer', range=(8, 4096), old=('tail_tokens',)
    )
    euler_steps: int = _param(10, 'Euler steps of a chunk if time allows', range=(1, 50))
    min_euler_steps: int = _param(
        4, 'Fewest Euler steps of a chunk; with less time there is no chunk', range=(1, 50)
    )
    chunk_candidates: int = _param(
        1,
        'Chunks of a frame from different noise, in one batch, of which the arm gets the one that '
        'is nearest to the others; fewer if the Euler steps of all do not fit before the deadline',
        range=(1, 16),
    )
    rtc: str = _param(
        'off',
        'Real-time chunking, by which a chunk continues the running one: off, guided (any '
        'policy) or trained (a policy that was trained for it)',
        choices=('off', 'guided', 'trained'),
    )
    rtc_max_guidance: float = _param(
        5.0, 'Largest weight of the guidance with rtc: guided', range=(0.0, 100.0)
    )
    rtc_horizon: int = _param(
        0,
        'Actions at the start of a chunk that the running one guides; the chunk must take over '
        'before their end. 0: half of them',
        range=(0, 1000),
    )
    rtc_schedule: str = _param(
        'exponential',
        'Weights of the guidance until rtc_horizon: linear, exponential, ones or zeros',
        choices=RTC_SCHEDULES,
    )
    deadline_margin_ms: float = _param(
        4.0,
        'Time (ms) for publishing before each deadline',
        range=(0.0, 1000.0),
        old=('margin_ms',),
    )
    idle_unit_ms: float = _param(
        20.0,
        'Target duration (ms) of a step of text or of a plan. A frame that was not expected waits '
        'for at most one step. If a decode step of all streams takes longer, fewer streams are '
        'decoded at a time, and a step of a plan computes fewer tokens',
        range=(1.0, 1000.0),
    )
    time_budget: bool = _param(
        True,
        'Plan Euler and decode steps by the time left; off: always all, as soon as possible',
        old=('budget',),
    )
    compile: str = _param(
        'off',
        'Use of compiled code. off: none; auto: code that is compiled for this machine already; '
        'the rest is compiled in the background while no arm is armed, for the next start; '
        'now: the rest is compiled at the start, which takes minutes',
        choices=COMPILE,
    )
    threads: int = _param(1, 'Torch threads of the engine thread', range=(1, 256))
    decode_batch_multiple: int = _param(
        1,
        'Number whose multiples are the sizes of decode batches, with padding',
        range=(1, 256),
        old=('batch_multiple',),
    )
    decode_steps: int = _param(
        1,
        'Decode steps per scheduling iteration, if time allows; with more steps, a GPU waits less '
        'for the host',
        range=(1, 256),
    )
    compressed_rows: int = _param(
        2,
        'Memory for compressed prefixes, as a number of whole ones; 0: no compression',
        range=(0, 4096),
        old=('flat_rows',),
    )
    compression_method: str = _param(
        'vl_cache_pooled', 'Method that selects the retained tokens', old=('compress',)
    )
    compression_queries: str = _param(
        'text',
        'Attention that selects the tokens for language: stream (of each question), row (of the '
        'prompt, once a frame) or text (of both)',
        choices=('stream', 'row', 'text'),
        old=('compress_by',),
    )
    compression_layer_budgets: str = _param(
        'own',
        'Distribution of the retained tokens over the layers: own (that of the method), density, '
        'equal, bounded (density, at least half of an equal share) or pyramid',
        choices=('own', 'density', 'equal', 'bounded', 'pyramid'),
        old=('compress_shares',),
    )
    compression_after_tokens: int = _param(
        2,
        'Tokens of an answer that are decoded with the whole prefix and select tokens in addition '
        'to the question, before compression by stream or text; not used by row',
        range=(0, 4),
        old=('compress_after',),
    )
    language_keep_ratio: float = _param(
        1.0, 'Share of a prefix retained for language', range=(0.01, 1.0), old=('language_alpha',)
    )
    action_keep_ratio: float = _param(
        1.0, 'Share of a prefix retained for actions', range=(0.01, 1.0), old=('action_alpha',)
    )
    memory_rows: int = _param(
        0,
        'Maximum number of earlier frames of a robot whose KV its chunks and texts read, for a '
        'policy that was trained with them; -1: as many as it was trained with, 0: none. Each row '
        'of a robot then has a copy',
        range=(-1, 8),
    )
    memory_kept_rows: int = _param(
        0,
        'Maximum number of memory rows of a robot that are kept of earlier instructions, and of '
        'the present one; of more than memory_rows, those of earlier ones whose words are closest '
        'to the instruction are read. 0: as many as are read',
        range=(0, 64),
    )
    memory_keep_ratio: float = _param(
        0.5, 'Share of a prefix that a memory row keeps', range=(0.01, 1.0)
    )
    memory_interval: float = _param(
        2.0,
        'Time (s) after which a frame becomes a memory row, in addition to the first frame and '
        'the last one with each instruction',
        range=(0.1, 3600.0),
    )
    memory_novelty: float = _param(
        0.1,
        'Change of a pixel of a thumbnail since the newest memory row, 0 to 1, below which a '
        'frame of the interval becomes none; 0: each one becomes one',
        range=(0.0, 1.0),
    )
    kv_budget_mib: int = _param(
        0,
        'Budget of all KV on the device, MiB: frames, compressed rows, streams, the row of the '
        'planner, loaded memory, capsules; 0: only their own limits',
        range=(0, 2**24),
    )
    kv_eviction_file: str = _param(
        '',
        'File with the order of eviction for kv_budget_mib; empty: the packaged kv/eviction.yaml, '
        'which documents its fields',
        old=('kv_policy',),
    )
    device: str = _param(
        'cpu',
        'cpu or cuda',
        choices=('cpu', 'cuda'),
        fix='; set CUDA_VISIBLE_DEVICES to choose one of several GPUs',
    )
    dtype: str = _param(
        'auto',
        'float32, bfloat16 or auto: that of the model, or float32 on a CPU without support for '
        'bfloat16',
    )
    seed: int = _param(
        0, 'Seed of the action noise, combined with the frame number', range=(0, 2**31 - 1)
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            value, (low, high) = getattr(self, f.name), f.metadata.get('range', (None, None))
            if low is not None and not low <= value <= high:
                raise ValueError(f'engine.{f.name} must be from {low} to {high} (got {value})')
            *first, last = choices = f.metadata.get('choices', (value,))
            if value not in choices:
                words = f'{", ".join(first)} or {last}{f.metadata.get("fix", "")}'
                raise ValueError(f'engine.{f.name} must be {words} (got {value!r})')
        if contradiction := self._contradiction():
            raise ValueError(contradiction)

    def horizon(self, chunk_size: int) -> int:
        """Return the number of actions of a chunk that the running one guides."""
        return min(self.rtc_horizon or max(1, chunk_size // 2), chunk_size)

    def allowed(self, model: ModelConfig, period: float) -> float:
        """Return the time (s) from an observation to the deadline of its chunk.

        It is the period (s) of frames; with real-time chunking, the horizon if that is longer.
        """
        if self.rtc == 'off':
            return period
        return max(period, self.horizon(model.chunk_size) * model.action_dt)

    @property
    def has_copies(self) -> bool:
        """Return whether there is memory for copies of prefixes."""
        return bool(self.compressed_rows or self.memory_rows)

    @property
    def kept_rows(self) -> int:
        """Return the maximum number of kept memory rows of earlier instructions of a robot."""
        return self.memory_kept_rows or self.memory_rows

    @property
    def kv_budget(self) -> float:
        """Return the KV budget in bytes; infinite without a bound."""
        return self.kv_budget_mib * 2**20 or math.inf

    def _contradiction(self) -> str:
        if self.kept_rows < self.memory_rows:
            return (
                f'engine.memory_kept_rows must be 0 or at least engine.memory_rows (got '
                f'{self.memory_kept_rows} for {self.memory_rows}); raise it to {self.memory_rows}'
            )
        if self.memory_kept_rows and not self.memory_rows:
            return (
                'engine.memory_kept_rows must be 0 without engine.memory_rows (got '
                f'{self.memory_kept_rows}); set both'
            )
        if self.rows < 2 * self.max_batch_robots:
            return (
                'engine.rows must be at least two for each of engine.max_batch_robots (got '
                f'{self.rows} for {self.max_batch_robots}); raise it to '
                f'{2 * self.max_batch_robots}'
            )
        if self.reserved_rows >= self.rows:
            return (
                f'engine.reserved_rows must be below engine.rows {self.rows} (got '
                f'{self.reserved_rows}); lower it, or raise engine.rows'
            )
        for name, limit in (
            ('min_euler_steps', 'euler_steps'),
            ('decode_batch_multiple', 'streams'),
        ):
            if (value := getattr(self, name)) > (most := getattr(self, limit)):
                return f'engine.{name} must be <= engine.{limit} {most} (got {value}); lower it'
        for name in ('language_keep_ratio', 'action_keep_ratio'):
            if (ratio := getattr(self, name)) < 1 and not self.compressed_rows:
                return (
                    f'engine.{name} must be 1 without engine.compressed_rows (got {ratio}); raise '
                    'engine.compressed_rows, or set the ratio to 1'
                )
        return ''
