"""Frames and live streams for the benchmarks, without a camera and without a warm-up phase."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from embodied_kv.config import ModelConfig
from embodied_kv.engine.engine import Engine
from embodied_kv.kv.handle import KvHandle
from embodied_kv.model.policy import Policy
from embodied_kv.types import Observation

QUERY = 'Subtask:'


class FullPolicy(Policy):
    """A policy of random weights with the longest prefix, whose streams never end.

    Prompts are of exactly `max_text` tokens.
    """

    @classmethod
    def random(cls, config: ModelConfig, seed: int = 0, device: str = 'cpu') -> FullPolicy:
        policy = super().random(config, seed, device)
        policy.tokenizer.eos = -1  # random weights must not end a stream
        return policy

    def prompt_ids(self, instruction: str, state: np.ndarray) -> list[int]:
        digits = (np.abs(np.resize(state, self.config.max_text)) * 100).astype(int)
        return [self.tokenizer.bos, *(3 + digits[1:] % 200).tolist()]


def with_views(c: ModelConfig, count: int | None) -> ModelConfig:
    """Return the model with its first `count` views only; None: all. Raises ValueError."""
    if count is not None and not 1 <= count <= len(c.views):
        raise ValueError(f'{c.name} has {len(c.views)} views, not {count}')
    return replace(c, views=c.views[:count])


def observation(
    c: ModelConfig, sequence: int, robot: str = '', period: float = 1e6
) -> Observation:
    """Return a random frame, the same for the same sequence."""
    random = np.random.default_rng(sequence)
    size = c.vision.image_size
    return Observation(
        images=tuple(random.integers(0, 256, (size, size, 3), dtype=np.uint8) for _ in c.views),
        state=random.uniform(-1, 1, c.state_dim).astype(np.float32),
        instruction='reach the red cube',
        stamp=time.time_ns(),
        deadline=time.monotonic() + period,
        sequence=sequence,
        robot=robot,
    )


def copy_frame(engine: Engine, handle: KvHandle, sequence: int) -> KvHandle:
    """Copy the handle's KV into another row: a frame that needs no prefill."""
    kv = engine.kv
    row = kv.reserve(time.monotonic())
    kv.prefixes.k[:, row].copy_(kv.prefixes.k[:, handle.row])
    kv.prefixes.v[:, row].copy_(kv.prefixes.v[:, handle.row])
    return kv.frames.commit(
        row, handle.length, robot='', sequence=sequence, stamp=0, deadline=handle.deadline
    )


def open_stream(engine: Engine, handle: KvHandle, tokens: int, said: int = 0):
    """Open a stream of `tokens` tokens, `said` of them already generated; its KV is noise."""
    stream = engine.open(handle, QUERY, max_tokens=tokens)
    if said:
        live = engine.kv.streams.grow([stream], len(stream.query.ids) + said - 1)
        k, v = engine.kv.decode_kv.row(stream.decode_row)
        k.normal_()
        v.normal_()
        engine.kv.streams.update(live, [[10 + token % 50 for token in range(said)]], eos=-1)
    return stream


def steady_state(engine: Engine, tokens: int, per_frame: int) -> None:
    """Open the streams of a steady state: one of each age, `per_frame` tokens apart.

    Each stream reads a copy of one prefilled row.
    """
    (handle,) = engine.prefill([observation(engine.policy.config, 0)])
    with engine.kv.acquire(handle):
        ages = range(1 + per_frame, tokens, per_frame)
        for number, said in enumerate(reversed(ages)):
            open_stream(engine, copy_frame(engine, handle, number), tokens, said)
