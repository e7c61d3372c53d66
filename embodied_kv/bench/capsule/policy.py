"""Time to the policy's first action: prefill and denoising beside a restored row and denoising.

Knows frames and the engine. Does not know the planner, tables or files. A restored row is a frame
of the past: its chunk is made again to compare, or after the scene was put back to that frame. An
action in a world that went on always needs a fresh observation, hence a prefill.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import replace

from embodied_kv.bench.capsule.figures import Stores, copies, tail
from embodied_kv.bench.common import scene
from embodied_kv.bench.common.report import once
from embodied_kv.config import EngineConfig, ModelConfig, preset
from embodied_kv.engine.engine import Engine
from embodied_kv.model.dtype import served
from embodied_kv.types import ActionChunk

SAID = 8  # tokens of the stream that goes into the capsule of a row


def first_action(engine: Engine, stores: Stores, repeats: int) -> dict[str, float]:
    """Both ways in turn. Raises AssertionError if one byte of the replayed chunk differs."""
    frame = scene.observation(engine.policy.config, 0)
    capsules = stores.open()

    def cold() -> ActionChunk:
        (handle,) = engine.prefill([frame])
        with engine.kv.acquire(handle) as lease:
            return engine.denoise([lease], [math.inf])[0]

    chunk = cold()
    capsules.snapshot('frame')
    capsules.replay('frame')
    times, chunks = defaultdict(list), []
    for _ in range(repeats):
        times['cold'].append(once(lambda: chunks.append(cold()), stores.device))
        times['restored'].append(
            once(lambda: chunks.append(capsules.replay('frame')), stores.device)
        )
    for other in chunks:
        assert other.values.tobytes() == chunk.values.tobytes(), 'a replayed chunk differs'
    medians = {way: statistics.median(seconds) for way, seconds in times.items()}
    return dict(
        prefix=engine.kv.current().length,
        repeats=repeats,
        **tail('cold', times['cold']),
        **tail('restored', times['restored']),
        speedup=medians['cold'] / medians['restored'],
    )


def rows(name: str, config: EngineConfig, repeats: int) -> list[dict[str, float]]:
    """Copies of a frame's row of the preset `name`, and of the tail of one stream on it."""
    model = served(thin(preset(name)), config.device, config.dtype)
    engine = Engine(scene.FullPolicy.random(model, device=config.device), config)
    frame = scene.observation(engine.policy.config, 1)
    (handle,) = engine.prefill([replace(frame, deadline=-math.inf)])  # no action is due from it
    engine.open(handle, scene.QUERY, max_tokens=2 * SAID)
    for _ in range(SAID):
        engine.decode()
    return copies(Stores(engine, device=config.device).open(), repeats, config.device)


def thin(c: ModelConfig) -> ModelConfig:
    """A policy with the same cache and hardly any weights: to move bytes, not to compute."""
    width = dict(width=64, mlp=64)
    return replace(
        c,
        vision=replace(c.vision, **width, layers=1, heads=4),
        backbone=replace(c.backbone, **width, vocab_size=512),
        expert=replace(c.expert, **width),
    )
