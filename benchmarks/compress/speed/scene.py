"""Engines, frames and questions of any length for the speed of compression, without a camera."""

from __future__ import annotations

import gc
import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.scene import FullPolicy
from benchmarks.compress.speed.models import IMAGE, SIZE, TEXT
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle
from embodied_kv.types import Observation

KEEP_RATIO = 0.1
ANSWER = 100  # tokens (5.2)
QUESTIONS = (16, 24, 50)  # tokens
SHORT = 8  # tokens of a question whose begin is not timed
DECODE_TOKENS = max(QUESTIONS) + ANSWER + 2  # of a stream
RESERVED = 2  # prefix rows that language may never hold
PASSING = 2  # prefix rows that language holds until they are compressed
WAYS = {
    'full': dict(compressed_rows=0),
    'by row': dict(compression_queries='row', language_keep_ratio=KEEP_RATIO),
    'by text': dict(
        compression_queries='text', compression_after_tokens=0, language_keep_ratio=KEEP_RATIO
    ),
}


def longest(policy: FullPolicy, tokens: int) -> int:
    """Return the tokens of the longest prefix of an engine that is made for `tokens`."""
    return _views(tokens) * policy.config.vision.tokens + TEXT


def _views(tokens: int) -> int:
    return -(-(tokens - TEXT) // IMAGE)


def make_engine(policy: FullPolicy, tokens: int, **config: object) -> Engine:
    """Return an engine over the policy's weights, for prefixes of at least `tokens` tokens."""
    gc.collect()  # leases and managers form cycles: earlier engines would keep their arenas
    views = tuple(f'view {i}' for i in range(_views(tokens)))
    own = replace(policy, config=replace(policy.config, views=views))
    fixed = dict(
        time_budget=False,
        reserved_rows=RESERVED,
        decode_tokens=DECODE_TOKENS,
        device=policy.model.device.type,
    )
    return Engine(own, EngineConfig(**fixed | config))


def observation(engine: Engine, sequence: int) -> Observation:
    """Return a random frame with every view."""
    random = np.random.default_rng(sequence)
    views = engine.policy.config.views
    return Observation(
        images=tuple(random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8) for _ in views),
        state=random.uniform(-1, 1, 7).astype(np.float32),
        instruction='reach the red cube',
        stamp=0,
        deadline=float('inf'),
        sequence=sequence,
    )


def noise(engine: Engine) -> Tensor:
    """Return K or V of the longest prefix, equal in all layers.

    The shape is [layers, kv_heads, tokens, head_dim].
    """
    k = engine.kv.prefixes.k[:, 0]
    return torch.randn(k.shape[1:], device=k.device).to(k.dtype).expand_as(k)


def fill(engine: Engine, k: Tensor, v: Tensor, tokens: int, sequence: int = 0) -> KvHandle:
    """Commit a frame without a prefill: the first `tokens` of k and v, as in `noise`.

    In an engine that takes scores of the frame's text, these are random.
    """
    kv, compression = engine.kv, engine.compression
    row = kv.reserve(time.monotonic())
    for own, given in ((kv.prefixes.k, k), (kv.prefixes.v, v)):
        own[:, row, :, :tokens].copy_(given[:, :, :tokens])
    handle = kv.frames.commit(
        row, tokens, robot='', sequence=sequence, stamp=0, deadline=float('inf')
    )
    decided = compression.decide()
    if decided.scores_frame:
        compression.scores.columns.uniform_()
        compression.scores.density.uniform_(0.1, 1.0)
        compression.compress_frame(handle, 0, TEXT, decided)
    return handle


def ask(engine: Engine, handle: KvHandle, question: int, answer: int) -> DecodeStream:
    """Open a stream about the frame; question, answer: their tokens."""
    return engine.open(handle, 'q' * question, max_tokens=answer)


def grow(engine: Engine, values: Tensor, context: int, batch: int) -> None:
    """Open streams up to `batch`, each about a frame of its own, with one token generated."""
    for number in range(len(engine.kv.streams.live()), batch):
        ask(engine, fill(engine, values, values, context, number), SHORT, ANSWER)
        engine.decode()
    live, allocation_failures = len(engine.kv.streams.live()), engine.kv.copies.allocation_failures
    assert live == batch and not allocation_failures, (
        f'{live} streams, {allocation_failures} were not compressed'
    )
