"""LeRobot's other training settings, set in a recorded folder, equal its formulas in numpy."""

import numpy as np
import pytest
from cases import LEROBOT, POST, PRE, STATE_FILES, copied, opened, retensor, rewrite, step
from safetensors.numpy import load_file

from embodied_kv.robots.declared import Declared

NAMES = ['pan.pos', 'lift.pos', 'elbow.pos', 'flex.pos', 'roll.pos', 'yaw.pos', 'Gripper.pos']
STATS = load_file(LEROBOT / STATE_FILES[PRE])
STATE = np.array([0.31, -2.4, 0.7, 3.1, -0.2, 1.4, 0.02, 0.03])
CHUNK = np.random.default_rng(0).normal(0, 1.5, (10, 32)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    return copied(LEROBOT, tmp_path / 'policy')


def set_modes(folder, state, action):
    modes = {'VISUAL': 'IDENTITY', 'STATE': state, 'ACTION': action}
    rewrite(folder / 'config.json', lambda value: value.update(normalization_mapping=modes))
    for file, name in ((PRE, 'normalizer_processor'), (POST, 'unnormalizer_processor')):
        rewrite(folder / file, lambda value, name=name: step(value, name).update(norm_map=modes))


def set_relative(folder, names, exclude):
    def change(value):
        step(value, 'relative_actions_processor').update(
            enabled=True, action_names=names, exclude_joints=exclude
        )

    rewrite(folder / PRE, change)
    rewrite(folder / POST, lambda v: step(v, 'absolute_actions_processor').update(enabled=True))
    rewrite(
        folder / 'config.json',
        lambda value: value.update(use_relative_actions=True, action_feature_names=names),
    )


def stat(name):
    return STATS[name].astype(np.float32)


def quantiles(y):
    low, high = stat('action.q01'), stat('action.q99')
    span = np.where(high == low, np.float32(1e-8), high - low)
    return (y[:, :7] + np.float32(1)) * span / np.float32(2) + low


def test_mean_std_is_read_where_quantiles_lie_beside(folder):
    set_modes(folder, 'MEAN_STD', 'MEAN_STD')
    processing = opened(folder).processing
    x = STATE.astype(np.float32)
    mean, std = stat('observation.state.mean'), stat('observation.state.std')
    moved = std > 1e-3  # the fingers stood still in the data, so that their value is bounded
    normalised = (x - mean) / (std + np.float32(1e-8))
    np.testing.assert_array_equal(processing.state(STATE)[moved], normalised[moved])
    np.testing.assert_array_equal(processing.state(STATE)[~moved], [-10, 10])
    expected = CHUNK[:, :7] * stat('action.std') + stat('action.mean')
    np.testing.assert_array_equal(processing.actions(CHUNK, STATE), expected)
    assert processing.actions(CHUNK, STATE).dtype == np.float32


def test_state_and_action_may_differ_in_mode(folder):
    set_modes(folder, 'MEAN_STD', 'QUANTILES')
    n = opened(folder).processing.normalizer
    assert (n.state_scale.mode, n.action_scale.mode) == ('mean_std', 'quantiles')
    np.testing.assert_allclose(n.actions(CHUNK, STATE), quantiles(CHUNK), rtol=1e-6)


def test_relative_actions_start_from_the_raw_state_and_the_gripper_stays(folder):
    set_relative(folder, NAMES, ['gripper'])
    checkpoint = opened(folder)
    assert checkpoint.processing.normalizer.relative.tolist() == [True] * 6 + [False]
    assert checkpoint.action_names == tuple(NAMES)
    offset = np.append(STATE[:6], 0).astype(np.float32)
    np.testing.assert_allclose(
        checkpoint.processing.actions(CHUNK, STATE), quantiles(CHUNK) + offset, rtol=1e-6
    )


def test_all_rows_of_a_chunk_start_from_the_same_state(folder):
    set_relative(folder, NAMES, ['gripper'])
    processing = opened(folder).processing
    moved = processing.actions(CHUNK, STATE + 1) - processing.actions(CHUNK, STATE)
    np.testing.assert_allclose(moved, np.tile([1.0] * 6 + [0.0], (10, 1)), atol=1e-5)


def test_without_names_nothing_is_excluded_as_in_training(folder):
    set_relative(folder, None, ['gripper'])
    assert opened(folder).processing.normalizer.relative.all()


def test_before_0_5_the_state_was_padded_and_black_was_minus_three(folder):
    rewrite(folder / 'config.json', lambda value: value.pop('use_relative_actions'))
    old = opened(folder, Declared(fps=30, lerobot_before_0_5=True)).processing
    new = opened(folder, Declared(fps=30, lerobot_before_0_5=False)).processing
    bins = old.prompt.bins(new.state(STATE))
    assert bins.tolist() == [*new.prompt.bins(new.state(STATE)), *[128] * 24]
    wide = np.full((10, 20, 3), 255, np.uint8)
    assert new.resize.to_model([wide], 8).unique().tolist() == [-1, 1]
    assert old.resize.to_model([wide], 8).unique().tolist() == [-3, 1]


def test_views_keep_the_order_of_the_config(folder):
    def shuffle(value):
        features = value['input_features']
        order = ['wrist', 'base', 'arm']
        cameras = {
            f'observation.images.{name}': features['observation.images.image'] for name in order
        }
        state = {'observation.state': features['observation.state']}
        value.update(input_features=state | cameras, empty_cameras=0)

    rewrite(folder / 'config.json', shuffle)
    checkpoint = opened(folder)
    names = tuple(f'observation.images.{name}' for name in ('wrist', 'base', 'arm'))
    assert checkpoint.config.views == checkpoint.slots == names
    fewer = Declared(fps=30, views=(names[2], names[0]))
    checkpoint = opened(folder, fewer)
    assert checkpoint.config.views == (names[0], names[2])
    assert checkpoint.empty_views == (names[1],)


def test_an_empty_camera_is_no_view(folder):
    checkpoint = opened(folder)
    assert checkpoint.config.views == ('observation.images.image', 'observation.images.image2')
    assert checkpoint.empty_views == ('observation.images.empty_camera_0',)


def test_steps_and_times_are_those_of_the_config(folder):
    rewrite(
        folder / 'config.json',
        lambda value: value.update(n_action_steps=4, num_inference_steps=5, max_period=3.0),
    )
    checkpoint = opened(folder)
    assert (checkpoint.n_action_steps, checkpoint.euler_steps) == (4, 5)
    assert checkpoint.config.expert.time_max_period == 3.0
    assert checkpoint.config.action_dt == pytest.approx(1 / 30)


def test_it_says_how_many_actions_it_was_trained_to_be_given(folder):
    assert opened(folder).max_action_prefix == 0
    more = dict(rtc_training_max_delay=4, rtc_config={'enabled': True})
    rewrite(folder / 'config.json', lambda value: value.update(more))
    assert opened(folder).max_action_prefix == 4
    assert 'trained, action prefix up to 4' in '\n'.join(opened(folder).lines())


def test_renamed_views_are_reported(folder):
    renames = {'observation.images.front': 'observation.images.image'}
    rewrite(
        folder / PRE,
        lambda value: step(value, 'rename_observations_processor').update(rename_map=renames),
    )
    lines = '\n'.join(opened(folder).lines())
    assert 'observation.images.front -> observation.images.image' in lines


def test_a_deviation_of_zero_leaves_the_mean(folder):
    set_modes(folder, 'MEAN_STD', 'MEAN_STD')
    for file in STATE_FILES.values():
        retensor(folder / file, lambda tensors: tensors['action.std'][2:3].zero_())
    actions = opened(folder).processing.actions(CHUNK, STATE)
    np.testing.assert_array_equal(actions[:, 2], np.full(10, stat('action.mean')[2]))
