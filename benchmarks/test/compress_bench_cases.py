"""A policy of four layers, observations, questions and ways for tests of `benchmarks.compress`."""

import time
from dataclasses import replace

import numpy as np
import torch

from benchmarks.compress.cache import Harness
from benchmarks.compress.ways import all_ways
from embodied_kv.config import TINY
from embodied_kv.model.policy import Policy
from embodied_kv.types import Observation

FOUR = replace(TINY, name='four', backbone=replace(TINY.backbone, layers=4))
QUESTIONS = ('Subtask:', 'What is in the gripper?', 'Do you see the red cube?')
KEEP_RATIOS = (0.1, 0.4)
WAYS = all_ways(KEEP_RATIOS, sweep=False)


def policy(config=FOUR, seed=1):
    torch.set_num_threads(1)
    return Policy.random(config, seed=seed)


def observe(number):
    """Return an observation whose images, state and instruction differ for every number."""
    random = np.random.default_rng(number)
    size = FOUR.vision.image_size
    return Observation(
        images=tuple(random.integers(0, 256, (size, size, 3), dtype=np.uint8) for _ in range(2)),
        state=random.uniform(-1, 1, FOUR.state_dim).astype(np.float32),
        instruction=f'reach object {number}',
        stamp=number,
        deadline=time.monotonic() + 1e3,
        sequence=number,
        robot='',
    )


def answered(question, most):
    """Return a harness and a question about a frame, answered in at most `most` tokens."""
    harness = Harness(policy(), (), most)
    asked = harness.ask(harness.prefill(observe(1)), question)
    harness.answers(asked, ())
    return harness, asked
