"""Quantile normalisation and its inverse."""

import json
from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.config import TINY
from embodied_kv.model.preprocess import NEAR_CONSTANT, Normalizer

CONFIG = replace(TINY, state_dim=4, action_dim=3)
RANDOM = np.random.default_rng(0)


def stats(actions=(3,), delta=(True, False, True), **changes):
    low = RANDOM.uniform(-2, 0, 4), RANDOM.uniform(-2, 0, actions)
    parts = {
        'state': {'q01': low[0].tolist(), 'q99': (low[0] + 1.5).tolist()},
        'actions': {'q01': low[1].tolist(), 'q99': (low[1] + 2.5).tolist()},
    }
    return {'norm_stats': parts, 'delta': list(delta), **changes}


def test_the_formula_is_openpi_s():
    n = Normalizer.from_dict(stats(), CONFIG)
    x = RANDOM.uniform(-3, 3, 4).astype(np.float32)
    expected = (x - n.state_q01) / (n.state_q99 - n.state_q01 + 1e-6) * 2 - 1
    np.testing.assert_allclose(n.state(x), expected, rtol=1e-6)
    np.testing.assert_allclose(n.state(n.state_q01), -1)
    np.testing.assert_allclose(n.state(n.state_q99), 1, atol=1e-5)


@pytest.mark.parametrize('shape', [(3,), (CONFIG.chunk_size, 3)])
def test_actions_of_targets_equals_the_actions(shape):
    n = Normalizer.from_dict(stats(shape), CONFIG)
    actions = RANDOM.uniform(-3, 3, (5, CONFIG.chunk_size, 3)).astype(np.float32)
    state = RANDOM.uniform(-3, 3, (5, 4)).astype(np.float32)
    padded = np.pad(n.targets(actions, state), ((0, 0), (0, 0), (0, 5)), constant_values=9)
    np.testing.assert_allclose(n.actions(padded, state), actions, atol=1e-5)


def test_deltas_start_from_the_observed_state():
    n = Normalizer.from_dict(stats(delta=(True, False, True)), CONFIG)
    chunk, state = np.zeros((CONFIG.chunk_size, 8)), np.array([10.0, 20, 30, 40])
    moved = n.actions(chunk, state) - n.actions(chunk, np.zeros(4))
    np.testing.assert_allclose(moved, np.tile([10.0, 0, 30], (CONFIG.chunk_size, 1)), atol=1e-5)


@pytest.mark.parametrize('span', [0.0, 1e-9, NEAR_CONSTANT / 2])
def test_a_near_constant_joint_does_not_blow_up(span):
    d = stats(delta=(False, False, False))
    for part in ('state', 'actions'):
        d['norm_stats'][part]['q99'][1] = d['norm_stats'][part]['q01'][1] + span
    n = Normalizer.from_dict(d, CONFIG)
    state = n.state_q01 + np.float32(0.01)
    assert n.state(state)[1] == -1
    assert np.abs(n.state(state)).max() <= 1
    chunk = np.full((CONFIG.chunk_size, 8), 1e6)
    np.testing.assert_array_equal(n.actions(chunk, state)[:, 1], n.action_q01[1])
    targets = n.targets(np.full((CONFIG.chunk_size, 3), 0.5), state)
    assert np.abs(targets).max() < 10


def test_identity_spans_the_joint_limits():
    n = Normalizer.identity(CONFIG, lower=[-1, -2, -3, -4], upper=[1, 2, 3, 4])
    np.testing.assert_allclose(n.state([1, 2, 3, 4]), 1, atol=1e-5)
    chunk = np.ones((CONFIG.chunk_size, 8))
    np.testing.assert_allclose(n.actions(chunk, np.zeros(4))[0], [1, 2, 3], atol=1e-5)
    assert np.isfinite(Normalizer.identity(CONFIG).actions(chunk, np.zeros(4))).all()


def test_from_dict_of_to_dict_through_json_is_the_same():
    n = Normalizer.from_dict(stats((CONFIG.chunk_size, 3)), CONFIG)
    again = Normalizer.from_dict(json.loads(json.dumps(n.to_dict())), CONFIG)
    for name in ('state_q01', 'state_q99', 'action_q01', 'action_q99', 'delta'):
        np.testing.assert_array_equal(getattr(n, name), getattr(again, name))


def test_openpi_s_file_is_read_without_deltas():
    entry = {'mean': [0] * 4, 'std': [1] * 4, 'q01': [0] * 4, 'q99': [1] * 4}
    actions = {name: values[:3] for name, values in entry.items()}
    n = Normalizer.from_dict({'norm_stats': {'state': entry, 'actions': actions}}, CONFIG)
    assert not n.delta.any()


def changed(part, name, value):
    d = stats()
    d['norm_stats'][part][name] = value
    return d


@pytest.mark.parametrize(
    ('entries', 'complaint'),
    [
        (changed('state', 'q01', [0.0] * 5), r'state.q01 is \[5\], the model has \[4\]'),
        (changed('actions', 'q99', [0.0] * 4), r'actions.q99 is \[4\], the model has \[3\] or'),
        (changed('actions', 'q01', [0.0, 1.0, float('nan')]), 'actions.q01 is not finite'),
        (changed('state', 'q99', [-9.0] * 4), 'state.q99 lies below state.q01'),
        ({'norm_stats': {'state': {}}}, 'state.q01 is missing'),
        ({'norm_stats': {}}, 'state.q01 is missing'),
        ([], 'missing'),
        (stats(delta=(True,)), r'delta is \[1\]'),
    ],
)
def test_wrong_statistics_are_refused_by_name(entries, complaint):
    with pytest.raises(ValueError, match=complaint):
        Normalizer.from_dict(entries, CONFIG)


def test_a_delta_needs_a_joint_to_start_from():
    with pytest.raises(ValueError, match='delta beyond the 2 joints'):
        Normalizer.from_dict(stats(), replace(CONFIG, state_dim=2))
