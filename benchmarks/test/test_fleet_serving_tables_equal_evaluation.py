"""A table of the serving benchmark behaves like a world of the evaluation."""

import numpy as np
import pytest

from benchmarks.fleet.serving.world import Table
from embodied_kv.demo.sim.tabletop import JOINTS
from training.evaluate.cases import Case, Setting
from training.evaluate.worlds import World

DT, LATENCY = 0.1, 0.04
CASE = Case('reach', 4, 0)


@pytest.fixture
def pair():
    made = World(32, Setting(DT, LATENCY)), Table(32, DT)
    for world in made:
        world.begin(CASE)
    yield made
    for world in made:
        world.close()


def chunk_from(state):
    return state + np.linspace(0.0, 0.3, 10)[:, None] * np.ones(len(JOINTS))


def test_a_chunk_moves_both_alike(pair):
    world, table = pair
    for period in range(6):
        seen, there = world.look().observation, table.look().observation
        np.testing.assert_array_equal(there.state, seen.state)
        np.testing.assert_array_equal(there.images[0], seen.images[0])
        assert table.instruction == seen.instruction
        chunk = chunk_from(seen.state)
        world.step(chunk)
        table.advance(10 * period + 4)
        table.follow(chunk, 10 * period)
        done, over = table.advance(10 * (period + 1))
        assert (done, over) == (world.outcome().success, world.is_over)


def test_a_chunk_that_is_over_changes_nothing(pair):
    _, table = pair
    table.advance(35)
    before = table.look().observation.state
    table.follow(before + np.ones((4, 7)), 0)  # its actions were due at 0, 10, 20 and 30
    table.advance(60)
    np.testing.assert_allclose(table.look().observation.state, before, atol=0.02)


def test_time_is_up_when_it_is_for_evaluation(pair):
    world, table = pair
    while not world.is_over:
        world.step(None)
    assert table.advance(10 * world.period - 1) == (False, False)
    assert table.advance(10 * world.period) == (False, True)
