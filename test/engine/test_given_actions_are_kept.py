"""Trained real-time chunking keeps the first d actions as given; one graph serves every d."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.views import SuffixRead
from embodied_kv.model.policy import Policy
from embodied_kv.types import Guide
from training.common.objective import slot_modulation

CHUNK, DIM = TINY.chunk_size, TINY.action_dim
PLAN = np.random.default_rng(1).uniform(-0.05, 0.05, (CHUNK, DIM)).astype(np.float32)


def chunk(engine, seen, delay, noises=None):
    (handle,) = engine.prefill([seen])
    with engine.kv.acquire(handle) as lease:
        guide = Guide(PLAN, delay, np.zeros(CHUNK))
        (made,) = engine.denoise([lease], [math.inf], noises, [guide])
    return made


@pytest.mark.parametrize('delay', range(CHUNK))
def test_given_actions_come_out_as_they_went_in(make_engine, observe, delay):
    engine = make_engine(rtc='trained')
    made = chunk(engine, observe(1), delay)
    np.testing.assert_allclose(made.values[:delay], PLAN[:delay], atol=1e-6)
    assert (np.abs(made.values[delay:] - PLAN[delay:]) > 1e-4).all(1).all()
    assert not made.updates[:, :delay].any() and made.updates[:, delay:].all()


def test_the_rest_depends_on_what_is_given(make_engine, observe):
    engine = make_engine(rtc='trained')
    rest = [chunk(engine, observe(1), delay).values[4:] for delay in (0, 1, 2)]
    assert not np.allclose(rest[0], rest[1]) and not np.allclose(rest[1], rest[2])


def test_one_graph_serves_every_delay(make_engine, observe):
    engine = make_engine(rtc='trained')
    before = len(engine.graphs)
    for delay in range(CHUNK):
        chunk(engine, observe(delay + 1), delay)
    assert len(engine.graphs) == before == len(make_engine().graphs)


@torch.no_grad()
def test_served_steps_equal_steps_as_they_are_trained(make_engine, observe):
    """Each step equals the velocity of the training code with the same given actions."""
    engine, delay = make_engine(rtc='trained', time_budget=False), 2
    seen = observe(1)
    noises = np.random.default_rng(0).standard_normal((1, CHUNK, TINY.padded_action_dim))
    made = chunk(engine, seen, delay, noises.astype(np.float32))
    x = torch.from_numpy(noises).float()
    x[0, :delay] = torch.from_numpy(engine.policy.targets(PLAN, seen.state)[:delay])
    given = torch.arange(CHUNK)[None] < delay
    (handle,) = engine.prefill([seen])
    with engine.kv.acquire(handle) as lease:
        view = SuffixRead(engine.kv.prefixes, 1, CHUNK).bind([lease.row])
        model = engine.policy.model
        for step in range(made.steps):
            time = torch.tensor([1 - step / made.steps])
            modulation = slot_modulation(model.expert, time, given)
            v = model.velocity(x, modulation, view, model.suffix_rope(view.positions))
            x = torch.where(given[..., None], x, x - v / made.steps)
    expected = engine.policy.actions(x[0].numpy(), seen.state)
    np.testing.assert_allclose(made.values, expected, atol=2e-5)


def test_no_more_are_given_than_the_policy_was_trained_for(make_engine, observe):
    engine = make_engine(rtc='trained')
    object.__setattr__(engine.policy, 'max_action_prefix', 2)
    far, near = chunk(engine, observe(1), 4), chunk(engine, observe(1), 2)
    np.testing.assert_array_equal(far.values, near.values)


def test_a_policy_that_was_not_trained_so_is_refused():
    policy = replace(Policy.random(TINY, seed=1), max_action_prefix=0)
    with pytest.raises(
        ValueError, match="not trained to continue given actions .*set it to 'guided'"
    ):
        Engine(policy, EngineConfig(rtc='trained'))
