"""A checkpoint is read although it has padding that the network ignores."""

from dataclasses import replace

import numpy as np
import pytest
from cases import (
    LEROBOT,
    LIBERO,
    POST,
    PRE,
    STATE_FILES,
    copied,
    declared,
    opened,
    retensor,
    rewrite,
    step,
)
from torch.nn.functional import pad

from embodied_kv.model.check import main
from embodied_kv.model.weights import CheckpointError
from embodied_kv.robots.declared import Declared
from embodied_kv.robots.embodiment import Embodiment

STATISTICS = 'assets/physical-intelligence/libero/norm_stats.json'
STATE = np.array([-0.1, 0.2, 0.7, 3.1, -0.2, 0.4, 0.02, -0.03])
CHUNK = np.random.default_rng(0).normal(0, 1.5, (10, 32)).astype(np.float32)
ROBOT = Declared(fps=30, state_dims=8, action_dims=7)


@pytest.fixture
def lerobot(tmp_path):
    return copied(LEROBOT, tmp_path / 'policy')


@pytest.fixture
def openpi(tmp_path):
    return copied(LIBERO, tmp_path / 'policy')


def set_features(folder, state=None, action=None):
    """Set the dims in config.json, but not in the statistics."""

    def change(value):
        for key, name, dims in (
            ('input_features', 'observation.state', state),
            ('output_features', 'action', action),
        ):
            if dims:
                value[key][name]['shape'] = [dims]

    rewrite(folder / 'config.json', change)


def pad_tensors(folder, feature, dims, high=0.0):
    """Pad the statistics with dims that are always 0, or that need no scaling (high=1)."""

    def change(tensors):
        for name in [name for name in tensors if name.startswith(feature + '.')]:
            if tensors[name].numel() > 1:
                value = high if name.endswith(('q99', 'std', 'max')) else 0.0
                tensors[name] = pad(tensors[name], (0, dims - len(tensors[name])), value=value)

    for file in STATE_FILES.values():
        retensor(folder / file, change)


def pad_lists(high=0.0):
    def change(value):
        for part in value['norm_stats'].values():
            for name, numbers in part.items():
                numbers += [high if name in ('std', 'q99') else 0.0] * (32 - len(numbers))

    return change


def same_numbers(a, b):
    np.testing.assert_array_equal(a.processing.state(STATE), b.processing.state(STATE))
    actions = (c.processing.actions(CHUNK, STATE) for c in (a, b))
    np.testing.assert_array_equal(*actions)
    bins = [c.processing.prompt.bins(c.processing.state(STATE)).tolist() for c in (a, b)]
    assert bins[0] == bins[1]


@pytest.mark.parametrize('state', [32, 14, 6])
def test_input_features_of_a_base_model_give_way_to_the_statistics(lerobot, state):
    set_features(lerobot, state=state)
    checkpoint = opened(lerobot)
    assert checkpoint.config.state_dim == 8
    same_numbers(checkpoint, opened(LEROBOT))


def test_output_features_of_the_padded_network_give_way_to_the_statistics(lerobot):
    set_features(lerobot, action=32)
    checkpoint = opened(lerobot, ROBOT)
    assert checkpoint.config.action_dim == 7
    same_numbers(checkpoint, opened(LEROBOT))


def test_output_features_of_another_robot_are_refused(lerobot):
    set_features(lerobot, action=14)
    with pytest.raises(CheckpointError, match=r'action.q01 is \[7\], expected \[14\]'):
        opened(lerobot)


@pytest.mark.parametrize('mode', ['QUANTILES', 'MEAN_STD'])
@pytest.mark.parametrize('high', [0.0, 1.0])
def test_padded_statistics_of_lerobot_are_cut_to_the_features(lerobot, mode, high):
    modes = {'VISUAL': 'IDENTITY', 'STATE': mode, 'ACTION': mode}
    rewrite(lerobot / 'config.json', lambda value: value.update(normalization_mapping=modes))
    for file, name in ((PRE, 'normalizer_processor'), (POST, 'unnormalizer_processor')):
        rewrite(lerobot / file, lambda value, name=name: step(value, name).update(norm_map=modes))
    plain = opened(lerobot)
    for feature in ('observation.state', 'action'):
        pad_tensors(lerobot, feature, 32, high)
    same_numbers(opened(lerobot), plain)


def test_padded_data_set_keeps_its_constants_in_the_prompt(lerobot):
    set_features(lerobot, state=32, action=32)
    for feature in ('observation.state', 'action'):
        pad_tensors(lerobot, feature, 32)
    whole, cut = opened(lerobot), opened(lerobot, ROBOT)
    assert (whole.config.state_dim, cut.config.state_dim, cut.config.action_dim) == (32, 8, 7)
    padded = np.pad(STATE, (0, 24))
    assert cut.processing.prompt.bins(cut.processing.state(STATE)).tolist() == (
        whole.processing.prompt.bins(whole.processing.state(padded)).tolist()
    )
    np.testing.assert_array_equal(
        cut.processing.actions(CHUNK, STATE), whole.processing.actions(CHUNK, padded)[:, :7]
    )


def test_before_0_5_the_padded_state_of_the_prompt_is_the_same(lerobot):
    rewrite(lerobot / 'config.json', lambda value: value.pop('use_relative_actions'))
    old = Declared(fps=30, lerobot_before_0_5=True)
    plain = opened(lerobot, old)
    set_features(lerobot, state=32)
    same_numbers(opened(lerobot, old), plain)


def test_more_numbers_than_the_robot_has_are_refused(lerobot):
    set_features(lerobot, state=32)
    with pytest.raises(CheckpointError, match='the state has 8 dims, the contract has 6'):
        opened(lerobot, replace(ROBOT, state_dims=6))


@pytest.mark.parametrize('high', [0.0, 1.0])
def test_contract_without_names_gives_the_dims_of_padded_statistics(openpi, high):
    robot = replace(declared(LIBERO), state_names=None, action_names=None)
    rewrite(openpi / STATISTICS, pad_lists(high))
    checkpoint = opened(openpi, replace(robot, state_dims=8, action_dims=7))
    assert (checkpoint.config.state_dim, checkpoint.config.action_dim) == (8, 7)
    same_numbers(checkpoint, opened(LIBERO))


def test_statistics_of_further_numbers_are_no_padding(openpi):
    rewrite(openpi / STATISTICS, pad_lists())
    robot = replace(declared(LIBERO), state_names=tuple('abcdef'))
    with pytest.raises(CheckpointError, match='state must be padding after the 6 dims'):
        opened(openpi, robot)


def test_more_names_than_the_network_has_numbers_are_refused(openpi):
    rewrite(openpi / STATISTICS, pad_lists())
    robot = replace(declared(LIBERO), state_names=tuple(map(str, range(40))))
    with pytest.raises(CheckpointError, match='the state has 32 dims, the contract has 40'):
        opened(openpi, robot)


def test_padding_is_shown_with_the_checkpoint(lerobot):
    set_features(lerobot, state=32)
    assert '8 dims of 32 in its files' in '\n'.join(opened(lerobot).lines())
    assert 'in its files' not in '\n'.join(opened(LEROBOT).lines())


def test_check_of_a_shipped_contract_reads_padded_statistics(openpi, tmp_path, capsys):
    rewrite(openpi / STATISTICS, pad_lists())
    assert main(['libero', str(openpi), '--png', str(tmp_path / 'views.png')]) == 0
    shown = capsys.readouterr().out
    assert 'State: 8 dims of 32 in its files, the others are padding' in shown
    assert 'Action: 7 dims of 32 in its files, the others are padding' in shown


def test_rename_map_is_named_where_the_views_differ(lerobot):
    renames = {'observation.images.front': 'observation.images.image'}
    rewrite(
        lerobot / PRE,
        lambda value: step(value, 'rename_observations_processor').update(rename_map=renames),
    )
    with pytest.raises(CheckpointError) as refused:
        opened(lerobot, replace(ROBOT, views=('observation.images.front',)))
    assert 'name each view in observations of the contract' in str(refused.value)
    line = 'rename_map of its preprocessor: observation.images.front -> observation.images.image'
    assert line in str(refused.value)


def test_embodiment_declares_dims_and_units():
    facts = Embodiment.load('so101').declared
    assert (facts.state_dims, facts.action_dims) == (6, 6)
    assert facts.state_units[0] == pytest.approx(180 / np.pi)


def test_statistics_of_two_processors_must_have_the_same_dims(lerobot):
    def cut(tensors):
        for name in ('observation.state.q01', 'observation.state.q99'):
            tensors[name] = tensors[name][:6].clone()

    retensor(lerobot / STATE_FILES[POST], cut)
    with pytest.raises(CheckpointError, match='two processors normalise observation.state'):
        opened(lerobot)
