"""A policy with memory rows reads the moments before each episode, and no others."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.config import TABLETOP
from embodied_kv.model.policy import Policy
from training.evaluate.actors import Served
from training.evaluate.cases import Case, Setting
from training.evaluate.worlds import World

ROWS = 3


@pytest.fixture(scope='module')
def policy():
    return Policy.random(replace(TABLETOP, dtype='float32'), seed=1)


@pytest.fixture(scope='module')
def frame():
    """Return the first frame of an episode whose task refers to its past."""
    world = World(TABLETOP.vision.image_size, Setting(dt=0.1, latency=0.0))
    world.begin(Case('sequence', 0, 0))
    try:
        yield world.look()
    finally:
        world.close()


def act(policy, frame, rows=ROWS, **more):
    actor = Served(policy, 'silent', 1, 1, 1, memory_rows=rows, **more)
    (choice,) = actor.act([frame])
    return actor, choice.chunk


def test_the_moments_before_an_episode_become_memory_rows(policy, frame):
    actor, _ = act(policy, frame)
    rows = actor.engine.memory.rows(frame.observation.robot)
    assert 0 < len(rows) == min(ROWS, len(frame.memory))
    known = [moment.instruction for moment in frame.memory]
    assert rows[0].instruction == known[-1] and {row.instruction for row in rows} <= {*known}


def test_the_past_changes_what_the_policy_does(policy, frame):
    _, remembered = act(policy, frame)
    _, forgotten = act(policy, frame, rows=0)
    assert not np.allclose(remembered, forgotten)


def test_nothing_is_left_of_an_earlier_episode(policy, frame):
    _, wanted = act(policy, frame)
    actor, _ = act(policy, replace(frame, memory=frame.memory[::-1]))
    (again,) = actor.act([frame])
    assert np.array_equal(again.chunk, wanted)


def test_a_past_that_does_not_exist_is_no_error(policy, frame):
    actor, _ = act(policy, replace(frame, memory=()))
    assert actor.engine.memory.rows(frame.observation.robot) == ()


def test_a_restored_past_is_the_same_past(policy, frame):
    _, wanted = act(policy, frame)
    actor, chunk = act(policy, frame, past='restored')
    assert len(actor.engine.memory.rows(frame.observation.robot)) == ROWS
    assert np.array_equal(chunk, wanted)


def test_a_lost_past_is_no_past(policy, frame):
    actor, chunk = act(policy, frame, past='lost')
    assert actor.engine.memory.rows(frame.observation.robot) == ()
    assert np.array_equal(chunk, act(policy, replace(frame, memory=()))[1])
