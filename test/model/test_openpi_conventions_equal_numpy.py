"""openpi's conventions, read from recorded folders, equal its formulas in numpy."""

import json

import numpy as np
import pytest
from cases import ALOHA, LIBERO, copied, declared, opened, rewrite

from embodied_kv.robots.declared import Declared

STATISTICS = 'assets/physical-intelligence/libero/norm_stats.json'
STATE = np.array([0.31, -0.2, 0.7, 3.1, -0.2, 1.4, 0.02, -0.5])
CHUNK = np.random.default_rng(0).normal(0, 1.5, (10, 32)).astype(np.float32)
DROID = Declared(
    state_names=(*(f'joint_{i}' for i in range(7)), 'gripper'),
    action_names=(*(f'joint_{i}' for i in range(7)), 'gripper'),
    views=('base_0_rgb', 'left_wrist_0_rgb'),
    relative=(False,) * 8,
    state_in_prompt=True,
    conversion='none',
    fps=15,
)


@pytest.fixture
def folder(tmp_path):
    return copied(LIBERO, tmp_path / 'policy')


def pad(value):
    """Pad the statistics to all 32 dims of the network."""
    for part in value['norm_stats'].values():
        for name, values in part.items():
            values += [1.0 if name in ('std', 'q99') else 0.0] * (32 - len(values))


def test_the_formula_is_in_float64_with_1e_6_both_ways():
    processing = opened(LIBERO).processing
    stats = json.loads((LIBERO / STATISTICS).read_text())['norm_stats']
    low, high = (np.array(stats['state'][q]) for q in ('q01', 'q99'))
    expected = (STATE - low) / (high - low + 1e-6) * 2.0 - 1.0
    np.testing.assert_array_equal(processing.state(STATE), expected)
    low, high = (np.array(stats['actions'][q]) for q in ('q01', 'q99'))
    expected = (CHUNK[:, :7].astype(float) + 1.0) / 2.0 * (high - low + 1e-6) + low
    np.testing.assert_array_equal(processing.actions(CHUNK, STATE), expected)


def test_padded_statistics_are_cut_to_the_robot(folder):
    plain = opened(LIBERO, declared(LIBERO)).processing
    rewrite(folder / STATISTICS, pad)
    cut = opened(folder, declared(LIBERO))
    assert (cut.config.state_dim, cut.config.action_dim) == (8, 7)
    np.testing.assert_array_equal(cut.processing.state(STATE), plain.state(STATE))
    assert cut.processing.actions(CHUNK, STATE).shape == (10, 7)
    np.testing.assert_array_equal(
        cut.processing.actions(CHUNK, STATE), plain.actions(CHUNK, STATE)
    )


def test_a_droid_has_eight_of_each_and_says_its_state(folder):
    rewrite(folder / STATISTICS, pad)
    checkpoint = opened(folder, DROID)
    assert (checkpoint.config.state_dim, checkpoint.config.action_dim) == (8, 8)
    assert checkpoint.empty_views == ('right_wrist_0_rgb',)
    policy = checkpoint.load(dtype='float32')
    text = policy.tokenizer.decode(policy.prompt_ids('open it', STATE))
    edges = np.linspace(-1, 1, 257)[:-1]
    bins = np.digitize(checkpoint.processing.state(STATE), edges) - 1
    assert text == f'Task: open it, State: {" ".join(map(str, bins))};\nAction: '


def test_padded_statistics_do_not_say_the_dims(folder):
    rewrite(folder / STATISTICS, pad)
    with pytest.raises(ValueError, match=r'state\[\].names, actions.action\[\].names in the'):
        opened(
            folder, Declared(relative=(False,) * 8, state_in_prompt=True, conversion='none', fps=1)
        )


def test_without_the_state_the_newline_is_a_token_of_its_own():
    policy = opened(LIBERO).load(dtype='float32')
    encode = policy.tokenizer.encode
    assert policy.prompt_ids('pick_up\n', STATE) == [*encode('pick up', bos=True), *encode('\n')]


def test_aloha_flips_joints_and_grippers_are_not_inverse():
    processing = opened(ALOHA).processing
    state = np.linspace(0.1, 0.9, 14)
    decoded = processing.conversion.state(state)
    assert np.flatnonzero(decoded[[0, 1, 2, 3, 4, 5]] != state[:6]).tolist() == [1, 2]
    encoded = processing.conversion.actions(decoded)
    others = [i for i in range(14) if i not in (6, 13)]
    np.testing.assert_allclose(encoded[others], state[others])
    angle = (decoded[6] + 0.5476 + 0.6213) / (1.4910 + 0.6213)
    np.testing.assert_allclose(encoded[6], angle)
    assert abs(encoded[13] - state[13]) > 0.01


def test_mean_and_deviation_where_the_contract_says_so(folder):
    mode = {'state': 'mean_std', 'action': 'mean_std'}
    contract = Declared(**{**vars(declared(LIBERO)), 'normalization': mode})
    stats = json.loads((LIBERO / STATISTICS).read_text())['norm_stats']['state']
    expected = (STATE - np.array(stats['mean'])) / (np.array(stats['std']) + 1e-6)
    np.testing.assert_array_equal(opened(folder, contract).processing.state(STATE), expected)


def test_it_is_served_in_bfloat16_whatever_was_saved():
    assert opened(LIBERO).config.dtype == 'bfloat16'
