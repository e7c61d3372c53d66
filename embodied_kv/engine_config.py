"""How much an engine keeps and how it spends time: its parameters, each with what may be said.

Does not know torch, ROS or files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from embodied_kv.config import ModelConfig

COMPILE = ('off', 'auto', 'now')
RTC_SCHEDULES = ('linear', 'exponential', 'ones', 'zeros')


def _param(default: Any, help: str, **more: object) -> Any:
    """A field and its `help`.

    range: of the numbers that it may be; choices: of the words; fix: what to do instead of others.
    """
    return field(default=default, metadata={'help': help, **more})


@dataclass(frozen=True)
class EngineConfig:
    """How much the engine keeps and how it spends time.

    Each field is also a ROS parameter `engine.NAME`. Raises ValueError, with what to change, for a
    number out of its range and for parameters that contradict each other.
    """

    robots: int = _param(
        1, 'Robots whose frames one prefill, and one denoising, may batch', range=(1, 256)
    )
    rows: int = _param(16, 'Prefix rows in the arena', range=(3, 4096))
    reserved_rows: int = _param(2, 'Prefix rows that language may never hold', range=(2, 64))
    streams: int = _param(16, 'Decode streams that may live at once', range=(1, 4096))
    decode_tokens: int = _param(
        96, 'Tokens of a stream: its query and what it says', range=(8, 4096), old='tail_tokens'
    )
    euler_steps: int = _param(10, 'Euler steps of a chunk when time allows', range=(1, 50))
    min_euler_steps: int = _param(
        4, 'Fewest Euler steps; with less time the frame falls back', range=(1, 50)
    )
    rtc: str = _param(
        'off',
        'How a chunk goes on from the one that runs (real-time chunking): off, guided (any '
        'policy) or trained (one that was trained to)',
        choices=('off', 'guided', 'trained'),
    )
    rtc_max_guidance: float = _param(
        5.0, 'Greatest weight of the guidance of rtc: guided', range=(0.0, 100.0)
    )
    rtc_horizon: int = _param(
        0,
        'Actions of a chunk, from its first on, that the running one shapes; until then it must '
        'take over. 0: half of them',
        range=(0, 1000),
    )
    rtc_schedule: str = _param(
        'exponential',
        'How guidance fades out until rtc_horizon: linear, exponential, ones or zeros',
        choices=RTC_SCHEDULES,
    )
    margin_ms: float = _param(
        4.0, 'Kept free before every deadline, for publishing', range=(0.0, 1000.0)
    )
    time_budget: bool = _param(
        True,
        'Plan Euler steps and decode steps by the time left; off: always all, as soon as possible',
        old='budget',
    )
    compile: str = _param(
        'off',
        'Compiled code for what is used most. off: none; auto: what is compiled for this machine; '
        'the rest is compiled in the background while no arm is armed, for the next start; '
        'now: the rest is compiled at the start, which takes minutes',
        choices=COMPILE,
    )
    threads: int = _param(1, 'Torch threads of the device thread', range=(1, 256))
    batch_multiple: int = _param(
        1, 'Decode batches are padded to a multiple of this; one graph each', range=(1, 256)
    )
    decode_steps: int = _param(
        1,
        'Tokens that streams say between two looks at what else waits, where the time left allows '
        'it; more spare a GPU its waits for the host',
        range=(1, 256),
    )
    compressed_rows: int = _param(
        2,
        'Room for compressed prefixes, in whole ones; 0: nothing is compressed',
        range=(0, 4096),
        old='flat_rows',
    )
    compress: str = _param('vl_cache_pooled', 'Method that chooses the tokens that are kept')
    compress_by: str = _param(
        'text',
        'What language is compressed by: stream (each question), row (the prompt, once a frame) '
        'or text (both)',
        choices=('stream', 'row', 'text'),
    )
    compress_shares: str = _param(
        'own',
        "How the layers share what is kept: own (the method's way), density, equal, bounded (by "
        'density, at least half of an equal share) or pyramid',
        choices=('own', 'density', 'equal', 'bounded', 'pyramid'),
    )
    compress_after: int = _param(
        2,
        'Tokens of its answer that a stream says from its whole prefix, and chooses by beside its '
        'question, before it is compressed by stream or by text; by row nothing waits',
        range=(0, 4),
    )
    language_keep_ratio: float = _param(
        1.0, 'Share of a prefix that language keeps', range=(0.01, 1.0), old='language_alpha'
    )
    action_keep_ratio: float = _param(
        1.0, 'Share of a prefix that actions keep', range=(0.01, 1.0), old='action_alpha'
    )
    kv_budget_mib: int = _param(
        0,
        'Most that all KV in use on the device may take together, MiB: frames, compressed copies, '
        "streams, the planner's row, loaded memory, capsules; 0: each has its own bound alone",
        range=(0, 2**24),
    )
    kv_policy: str = _param(
        '',
        'File that says which KV goes first where kv_budget_mib is full; empty: the packaged '
        'kv/eviction.yaml, which explains its fields',
    )
    device: str = _param(
        'cpu',
        'cpu or cuda',
        choices=('cpu', 'cuda'),
        fix='; set CUDA_VISIBLE_DEVICES to choose one of several GPUs',
    )
    dtype: str = _param(
        'auto',
        "float32, bfloat16 or auto: the model's own, but float32 on a CPU without units for "
        'bfloat16',
    )
    seed: int = _param(
        0, 'Of the action noise; each frame mixes in its number', range=(0, 2**31 - 1)
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
        """s: the actions of a chunk that the running one shapes."""
        return min(self.rtc_horizon or max(1, chunk_size // 2), chunk_size)

    def allowed(self, model: ModelConfig, period: float) -> float:
        """s from an observation to the deadline of its chunk. period: s between two frames.

        A period; with real-time chunking until the horizon, where that is later.
        """
        if self.rtc == 'off':
            return period
        return max(period, self.horizon(model.chunk_size) * model.action_dt)

    @property
    def kv_budget(self) -> float:
        """Bytes; infinite where there is no bound."""
        return self.kv_budget_mib * 2**20 or math.inf

    def _contradiction(self) -> str:
        """Which two parameters exclude each other, and what to do; '' if none do."""
        if self.rows < 2 * self.robots:
            return (
                f'engine.rows is {self.rows} for engine.robots {self.robots}: a robot needs two, '
                f'one that is read while its next is written; raise it to {2 * self.robots}'
            )
        if self.reserved_rows >= self.rows:
            return (
                f'engine.reserved_rows is {self.reserved_rows} of {self.rows} rows: none is left '
                'for language; lower it, or raise engine.rows'
            )
        for name, limit in (('min_euler_steps', 'euler_steps'), ('batch_multiple', 'streams')):
            if (value := getattr(self, name)) > (most := getattr(self, limit)):
                return f'engine.{name} is {value}, above engine.{limit} {most}: lower it'
        for name in ('language_keep_ratio', 'action_keep_ratio'):
            if (ratio := getattr(self, name)) < 1 and not self.compressed_rows:
                return (
                    f'engine.{name} is {ratio}, but engine.compressed_rows is 0: there is no room '
                    'for compressed prefixes; raise that, or set the ratio to 1'
                )
        return ''
