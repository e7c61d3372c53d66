"""A tiny float32 model and a batch with targets for all losses."""

import subprocess
import sys

import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.random import init_random
from training.common.batch import Batch
from training.common.objective import Objective

COLOURS, SHAPES = 3, 2


@pytest.fixture
def objective():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Pi05.empty(TINY, 'cpu')
    init_random(model, seed=1)
    return Objective(model, COLOURS, SHAPES)


@pytest.fixture
def batch():
    """Return three samples of different prompts.

    `packed` has two segments of 5 tokens and 2 tokens of padding.
    """
    c, size, things, prompt = TINY, 3, 2, 7
    generator = torch.Generator().manual_seed(0)

    def integers(high, *shape):
        return torch.randint(0, high, shape, generator=generator)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    offset = torch.tensor([0, 1, 2, 3, 4] * 2 + [0, 0]).repeat(size, 1)
    segment = torch.tensor([0] * 5 + [1] * 5 + [-1] * 2).repeat(size, 1)
    answer = integers(c.backbone.vocab_size, size, 12)
    pixels = torch.rand(size, things, 2, 2, generator=generator) * c.vision.image_size
    pixels[0, 0, 1] = torch.nan
    goal, where = normal(size, 3) * 0.1, normal(size, things, 3) * 0.1
    goal[1], where[2, 1] = torch.nan, torch.nan
    return Batch(
        images=integers(256, size, 2, c.vision.image_size, c.vision.image_size, 3).byte(),
        prompt=integers(c.backbone.vocab_size, size, prompt),
        prompt_length=torch.tensor([4, 7, 5]),
        actions=normal(size, c.chunk_size, c.padded_action_dim),
        delay=torch.tensor([0, 2, 1]),
        known=torch.full((size,), c.chunk_size),
        packed=integers(c.backbone.vocab_size, size, 12),
        segment=segment,
        offset=offset,
        answer=answer.where((offset >= 2) & (segment >= 0), -100),
        pixels=pixels,
        colour=integers(COLOURS, size, things),
        shape=integers(SHAPES, size, things),
        goal=goal,
        where_at=torch.tensor([[4, 9], [-1, 4], [9, 4]]),
        where=where,
    )


@pytest.fixture
def generate():
    """Return a function that runs the command that generates a dataset, with one process."""

    def run(out, *words):
        command = [sys.executable, '-m', 'training.policy.generate', '--out', str(out)]
        return subprocess.run(
            [*command, '--processes', '1', *words], capture_output=True, text=True
        )

    return run
