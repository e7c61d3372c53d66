"""Models, engines and frames for the speed of compression: of any length, and without a camera.

A slice of a model has a share of its layers and of its vocabulary, in their full dimensions. A
decode step is made of nothing else, so weights and KV stand to each other as in the whole model:
ratios are the whole model's, times are the share's. The vision tower and the expert are next to
nothing, as the paper times the language model alone.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from embodied_kv.bench.scene import FullPolicy
from embodied_kv.config import (
    PI05,
    PI05_SMALL,
    BackboneConfig,
    EngineConfig,
    ExpertConfig,
    ModelConfig,
    VisionConfig,
)
from embodied_kv.engine.engine import Engine
from embodied_kv.kv.handle import KvHandle
from embodied_kv.kv.stream import Stream
from embodied_kv.types import Observation

ALPHA = 0.1
ANSWER = 100  # tokens (5.2)
QUESTION = 24  # tokens
QUESTIONS = (16, QUESTION, 50)
SHORT = 8  # tokens of a question whose begin is not timed
TAIL = max(QUESTIONS) + ANSWER + 2  # tokens
IMAGE, TEXT = 1024, 48  # tokens of a view and of the prompt
SIZE = 64  # pixels, of a view
WAYS = {
    'full': dict(flat_rows=0),
    'by row': dict(compress_by='row', language_alpha=ALPHA),
    'by stream': dict(compress_by='stream', language_alpha=ALPHA),
}


def _slice(b: BackboneConfig, share: int) -> BackboneConfig:
    return dataclasses.replace(b, layers=b.layers // share, vocab_size=b.vocab_size // share)


MISTRAL = BackboneConfig(
    width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, mlp=14336, vocab_size=32000
)
BACKBONES = {
    'pi05_small': PI05_SMALL.backbone,
    'pi05_small, 8 KV heads': dataclasses.replace(PI05_SMALL.backbone, kv_heads=8),
    'pi05, a sixth': _slice(PI05.backbone, 6),
    'Mistral 7B, a sixteenth': _slice(MISTRAL, 16),
}


def model(
    name: str, backbone: BackboneConfig | None = None, dtype: str = 'bfloat16'
) -> ModelConfig:
    """A model around the backbone of that name, or around the given one."""
    return ModelConfig(
        name=name,
        vision=VisionConfig(image_size=SIZE, patch_size=2, width=16, layers=1, heads=1, mlp=16),
        backbone=backbone or BACKBONES[name],
        expert=ExpertConfig(width=32, mlp=32),
        views=('view',),
        max_text=TEXT,
        horizon=1,
        state_dim=7,
        action_dim=7,
        dtype=dtype,
    )


def longest(policy: FullPolicy, tokens: int) -> int:
    """Tokens of the longest prefix of an engine that is made for so many."""
    return _views(tokens) * policy.config.vision.tokens + TEXT


def _views(tokens: int) -> int:
    return -(-(tokens - TEXT) // IMAGE)


def make_engine(policy: FullPolicy, tokens: int, **config: object) -> Engine:
    """An engine over the policy's weights, for prefixes of at least so many tokens."""
    gc.collect()  # leases and managers know each other: earlier engines would keep their arenas
    views = tuple(f'view {i}' for i in range(_views(tokens)))
    own = dataclasses.replace(policy, config=dataclasses.replace(policy.config, views=views))
    fixed = dict(budget=False, reserved_rows=2, tail_tokens=TAIL, device=policy.model.device.type)
    return Engine(own, EngineConfig(**fixed | config))


def observation(engine: Engine, sequence: int) -> Observation:
    """A random frame with every view."""
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
    """K or V of the longest prefix, equal in all layers: [layers, kv_heads, tokens, head_dim]."""
    k = engine.kv.prefixes.k[:, 0]
    return torch.randn(k.shape[1:], device=k.device).to(k.dtype).expand_as(k)


def fill(engine: Engine, k: Tensor, v: Tensor, tokens: int, sequence: int = 0) -> KvHandle:
    """A frame that did not have to be prefilled: the first `tokens` of k and v, as in `noise`.

    An engine that compresses by row does so, by random scores.
    """
    kv, compression = engine.kv, engine.compression
    row = kv.reserve(time.monotonic())
    for own, given in ((kv.prefixes.k, k), (kv.prefixes.v, v)):
        own[:, row, :, :tokens].copy_(given[:, :, :tokens])
    handle = kv.commit(row, tokens, robot='', sequence=sequence, stamp=0, deadline=float('inf'))
    if compression.scores_frames:
        compression.scores.columns.uniform_()
        compression.scores.density.uniform_(0.1, 1.0)
        compression.compress_frame(handle, 0, queries=TEXT)
    return handle


def ask(engine: Engine, handle: KvHandle, tokens: int = QUESTION) -> Stream:
    """A new stream about the frame; its question has so many tokens."""
    return engine.open(handle, 'q' * tokens, max_tokens=ANSWER)


def now(device: str) -> float:
    """s: on a CPU the process's own time, as cores may be shared; on CUDA wall time, work done.

    One thread computes, so that own time is wall time wherever the core is free.
    """
    if device != 'cuda':
        return time.process_time()
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(work: Callable[[], object], device: str) -> float:
    """Of one call; see `now`."""
    began = now(device)
    work()
    return now(device) - began


def step_seconds(engines: Mapping[str, Engine], repeats: int, device: str) -> dict[str, float]:
    """Median seconds of a decode step of all streams of each engine; the engines take turns."""
    times: dict[str, list[float]] = {way: [] for way in engines}
    for _ in range(repeats + 1):
        for way, engine in engines.items():
            times[way].append(seconds(engine.decode, device))
    return {way: statistics.median(taken[1:]) for way, taken in times.items()}


def bandwidth(device: str) -> dict[str, float]:
    """Measured GB/s: read, by products of a row with many matrices, and read plus written."""
    matrices, copied = torch.zeros(2, 32, 2048, 2048, dtype=torch.bfloat16, device=device)
    row = torch.zeros(1, 2048, dtype=torch.bfloat16, device=device)

    def read() -> None:
        for matrix in matrices:
            torch.nn.functional.linear(row, matrix)

    def median(work: Callable[[], object]) -> float:
        return statistics.median([seconds(work, device) for _ in range(6)][1:])

    size = matrices.nbytes / 1e9
    return dict(read=size / median(read), copy=2 * size / median(lambda: copied.copy_(matrices)))
