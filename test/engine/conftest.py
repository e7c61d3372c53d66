"""A tiny random policy, and fixtures for engines and observations."""

import time

import numpy as np
import pytest
import torch

from benchmarks.common.hostile_device import HostileDevice
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from embodied_kv.types import Observation


@pytest.fixture(scope='session')
def policy():
    torch.set_num_threads(1)
    return Policy.random(TINY, seed=1)


@pytest.fixture
def hostile():
    """Yield an emulated device whose buffers start as NaN and whose streams are late."""
    with HostileDevice() as device:
        yield device


@pytest.fixture
def make_engine(policy):
    """Return a factory of engines with the same weights.

    By default, the time budget is off, so that no result depends on the clock, and streams are
    compressed right after their question, so that streams with short answers are compressed, too.
    """

    def make(**config):
        usual = dict(
            rows=12, max_batch_robots=5, streams=8, time_budget=False, compression_after_tokens=0
        )
        return Engine(policy, EngineConfig(**usual | config))

    return make


@pytest.fixture(scope='session')
def observe():
    """Return a factory of observations: images, state and instruction depend on `sequence`."""

    def make(sequence, missing=(), instruction=None, in_time=1.0, robot=''):
        random = np.random.default_rng(sequence)
        size = TINY.vision.image_size
        images = [random.integers(0, 256, (size, size, 3), dtype=np.uint8) for _ in TINY.views]
        return Observation(
            images=tuple(None if i in missing else image for i, image in enumerate(images)),
            state=random.uniform(-1, 1, TINY.state_dim).astype(np.float32),
            instruction=instruction or f'reach object {sequence}',
            stamp=sequence * 100_000_000,
            deadline=time.monotonic() + in_time,
            sequence=sequence,
            robot=robot,
        )

    return make
