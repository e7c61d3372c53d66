"""An episode depends neither on other robots nor on what its world did before."""

from contextlib import ExitStack, closing

import numpy as np
import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.model.policy import Policy
from training.evaluate import worlds
from training.evaluate.actors import Served
from training.evaluate.cases import Case, Setting
from training.evaluate.worlds import World, run

CASES = [Case(family, 1, 7) for family in FAMILIES]
SETTING = Setting(dt=0.1, latency=0.04, every=2)


@pytest.fixture(scope='module')
def tables():
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(World(TINY.vision.image_size, SETTING))) for _ in range(3)
        ]


def test_one_robot_equals_three(tables, monkeypatch):
    monkeypatch.setattr(worlds, 'SECONDS', dict.fromkeys(FAMILIES, 0.6))
    torch.set_num_threads(1)
    policy = Policy.random(TINY, seed=1)
    alone, together = (
        run(tables[:n], CASES, Served(policy, 'batched', n, steps=3, max_tokens=4)) for n in (1, 3)
    )
    for one, other in zip(alone, together, strict=True):
        assert one.case == other.case
        np.testing.assert_allclose(one.first, other.first, atol=1e-5)
        assert one.path == pytest.approx(other.path, abs=1e-4)
        assert (one.success, one.wrong, one.seconds) == (other.success, other.wrong, other.seconds)


def test_a_case_gives_the_same_frame_whatever_was_before(tables):
    first, second = tables[:2]
    first.begin(Case('put', 2, 3))
    for _ in range(3):
        first.step(None)
    for world in (first, second):
        world.begin(CASES[3])
    one, other = first.look(), second.look()
    assert (one.scene, one.told) == (other.scene, other.told)
    assert one.observation.instruction == other.observation.instruction
    assert one.observation.robot == 'push-1-7'
    for image, same in zip(one.observation.images, other.observation.images, strict=True):
        np.testing.assert_array_equal(image, same)


def test_scenes_are_not_those_of_training_and_all_differ():
    seeds = [
        Case('reach', seed, episode).scene_seed for seed in range(3) for episode in range(100)
    ]
    assert min(seeds) == 2_000_000 and len(set(seeds)) == 300


def test_a_frame_is_due_every_second_period(tables):
    world = tables[0]
    world.begin(CASES[0])
    due = []
    for _ in range(4):
        due.append((world.is_due, world.look().number, world.look().observation.sequence))
        world.step(None)
    assert due == [(True, 0, 0), (False, 0, 1), (True, 1, 2), (False, 1, 3)]
