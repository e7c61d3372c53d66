"""The quantile normalisation of this project follows openpi's formula and has an inverse."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.config import TINY
from embodied_kv.model.processing.normalizer import NEAR_CONSTANT, Normalizer

CONFIG = replace(TINY, state_dim=4, action_dim=3)
RANDOM = np.random.default_rng(0)


def normalizer(actions=(3,), relative=(True, False, True), span=None):
    """Return a normalizer with quantiles 1.5 (state) and 2.5 (actions) apart.

    span: distance of the quantiles of joint 1 instead, in state and actions.
    """
    low = RANDOM.uniform(-2, 0, 4), RANDOM.uniform(-2, 0, actions)
    high = low[0] + 1.5, low[1] + 2.5
    if span is not None:
        for lower, upper in zip(low, high, strict=True):
            upper[..., 1] = lower[..., 1] + span
    return Normalizer.from_quantiles(*zip(low, high, strict=True), np.array(relative))


def test_the_formula_is_openpi_s_in_float32():
    n = normalizer()
    x = RANDOM.uniform(-3, 3, 4).astype(np.float32)
    q01, q99 = (n.state_scale.statistics[name] for name in ('q01', 'q99'))
    np.testing.assert_allclose(n.state(x), (x - q01) / (q99 - q01 + 1e-6) * 2 - 1, rtol=1e-6)
    np.testing.assert_allclose(n.state(q01), -1)
    np.testing.assert_allclose(n.state(q99), 1, atol=1e-5)
    assert n.state(x).dtype == np.float32


@pytest.mark.parametrize('shape', [(3,), (CONFIG.chunk_size, 3)])
def test_actions_of_targets_equals_the_actions(shape):
    n = normalizer(shape)
    actions = RANDOM.uniform(-3, 3, (5, CONFIG.chunk_size, 3)).astype(np.float32)
    state = RANDOM.uniform(-3, 3, (5, 4)).astype(np.float32)
    padded = np.pad(n.targets(actions, state), ((0, 0), (0, 0), (0, 5)), constant_values=9)
    np.testing.assert_allclose(n.actions(padded, state), actions, atol=1e-5)


def test_relative_actions_start_from_the_observed_state():
    n = normalizer(relative=(True, False, True))
    chunk, state = np.zeros((CONFIG.chunk_size, 8)), np.array([10.0, 20, 30, 40])
    moved = n.actions(chunk, state) - n.actions(chunk, np.zeros(4))
    np.testing.assert_allclose(moved, np.tile([10.0, 0, 30], (CONFIG.chunk_size, 1)), atol=1e-5)


@pytest.mark.parametrize('span', [0.0, 1e-9, NEAR_CONSTANT / 2])
def test_a_near_constant_joint_does_not_blow_up(span):
    n = normalizer(relative=(False,) * 3, span=span)
    state = n.state_scale.origin + np.float32(0.01)
    assert n.state(state)[1] == -1
    assert np.abs(n.state(state)).max() <= 1
    chunk = np.full((CONFIG.chunk_size, 8), 1e6)
    np.testing.assert_array_equal(n.actions(chunk, state)[:, 1], n.action_scale.origin[1])
    targets = n.targets(np.full((CONFIG.chunk_size, 3), 0.5), state)
    assert np.abs(targets).max() < 10


def test_identity_keeps_minus_1_to_1():
    n = Normalizer.identity(CONFIG)
    np.testing.assert_allclose(n.state([1, -1, 0.5, 0]), [1, -1, 0.5, 0], atol=1e-5)
    chunk = np.ones((CONFIG.chunk_size, 8))
    np.testing.assert_allclose(n.actions(chunk, np.zeros(4))[0], [1, 1, 1], atol=1e-5)
