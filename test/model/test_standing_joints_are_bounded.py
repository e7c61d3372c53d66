"""A joint that stood still in the training data is named, and its value is bounded."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import LIBERO, copied, rewrite

from embodied_kv.config import TINY
from embodied_kv.engine.guidance import leftover
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model import data_range
from embodied_kv.model.check import main
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import ASSETS
from embodied_kv.model.policy import Policy
from embodied_kv.model.processing.normalizer import LARGEST, Normalizer, Scaling
from embodied_kv.model.processing.processing import Processing
from embodied_kv.model.processing.prompt import PromptStyle
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.load import load_policy
from embodied_kv.types import Guide

STATISTICS = 'assets/physical-intelligence/libero/norm_stats.json'
KINDS = {'openpi': Scaling.openpi, 'lerobot': Scaling.lerobot, 'own': Scaling.own}
STANDING = {
    'quantiles': {'q01': np.array([-1.56581, -0.5]), 'q99': np.array([-1.56486, 0.5])},
    'mean_std': {'mean': np.array([-1.5653, 0.0]), 'std': np.array([0.0002, 0.3])},
    'constant': {'q01': np.array([-1.5653, -0.5]), 'q99': np.array([-1.5653, 0.5])},
}

# Checkpoints of this project have quantiles.
SCALINGS = [(k, c) for k in KINDS for c in STANDING if (k, c) != ('own', 'mean_std')]


def scaling(kind, case, units=1.0):
    mode = 'mean_std' if case == 'mean_std' else 'quantiles'
    numbers = {name: values * np.abs(units) for name, values in STANDING[case].items()}
    return KINDS[kind](mode, numbers, units=units)


@pytest.mark.parametrize(('kind', 'case'), SCALINGS)
@pytest.mark.parametrize('units', [1.0, 180 / np.pi, 1000.0])
def test_offset_of_a_standing_joint_is_bounded_in_any_unit(kind, case, units):
    scale = scaling(kind, case, units)
    y = scale.normalise(np.array([-1.515, 4.0]) * units)
    assert np.abs(y[0]) <= LARGEST
    assert scale.still.tolist() == [True, False]
    assert y[1] == scale.exact(np.array([-1.515, 4.0]) * units)[1] > 7  # this joint moved


@pytest.mark.parametrize('case', ['quantiles', 'mean_std'])
def test_values_of_the_training_are_unchanged(case):
    scale = scaling('openpi', case)
    for x in (-1.5658, -1.5653, -1.5649):
        x = np.array([x, 0.1])
        np.testing.assert_array_equal(scale.normalise(x), scale.exact(x))


def test_bound_does_not_change_the_prompt():
    scale, style = scaling('openpi', 'quantiles'), PromptStyle()
    for x in np.linspace(-1.7, -1.4, 301):
        bounded, exact = scale.normalise([x, 0.0]), scale.exact([x, 0.0])
        assert style.bins(bounded).tolist() == style.bins(exact).tolist()


def test_leftover_of_a_standing_action_is_bounded_and_others_are_exact():
    plain = Policy.random(TINY)
    low, high = -np.ones(TINY.action_dim), np.ones(TINY.action_dim)
    low[2], high[2] = 0.2, 0.2002
    state = -np.ones(TINY.state_dim), np.ones(TINY.state_dim)
    normalizer = Normalizer.from_quantiles(state, (low, high), np.zeros(TINY.action_dim, bool))
    policy = Policy(TINY, plain.model, plain.tokenizer, Processing(normalizer), 3)
    actions = np.full((TINY.chunk_size, TINY.action_dim), 30.0)
    actions[:, 2] = 0.25
    guide = Guide(actions, 0, np.ones(TINY.chunk_size))
    given = leftover(guide, policy, np.zeros(TINY.state_dim)).actions
    np.testing.assert_allclose(given[:, 2], LARGEST)
    np.testing.assert_allclose(given[:, 0], 30.0, rtol=1e-5)


@pytest.fixture
def folder(tmp_path):
    """Return a checkpoint in whose training data the last finger stood still."""

    def stand(value):
        for name, number in (('q01', -0.0004), ('q99', -0.0001), ('std', 0.0001)):
            value['norm_stats']['state'][name][7] = number

    copy = copied(LIBERO, tmp_path / 'policy')
    rewrite(copy / STATISTICS, stand)
    return copy


def data_set(root, state, action=None, columns=('observation.state', 'action')):
    """Write the numbers of a data set of LeRobot, in two files."""
    (root / 'data/chunk-000').mkdir(parents=True)
    action = np.zeros((len(state), 7)) if action is None else action
    half = len(state) // 2
    for i, part in enumerate((slice(None, half), slice(half, None))):
        table = {
            name: pa.array(values[part].astype(np.float32).tolist())
            for name, values in zip(columns, (state, action), strict=True)
        }
        pq.write_table(pa.table(table), root / f'data/chunk-000/file-00{i}.parquet')
    return root


def trained(folder, part='state'):
    """Return numbers that are spread as in the training data."""
    numbers = json.loads((folder / STATISTICS).read_text())['norm_stats'][part]
    low, high = np.array(numbers['q01']), np.array(numbers['q99'])
    return np.random.default_rng(0).uniform(low, high, (200, len(low)))


def compared(folder, root):
    robot = Embodiment.load('libero')
    checkpoint = open_checkpoint(folder, robot.declared)
    ranges = data_range.compare(robot, checkpoint, root)
    return {f'{r.part} {r.name}': r for r in ranges}, data_range.warnings(robot, checkpoint)


def test_data_like_the_training_has_no_warning(folder, tmp_path):
    data = data_set(tmp_path / 'data', trained(folder), trained(folder, 'actions'))
    ranges, _ = compared(folder, data)
    assert len(ranges) == 15
    assert [line for r in ranges.values() for line in r.warnings] == []
    low, high = ranges['state pose.position.x'].normalised
    assert -1.05 < low < -0.9 and 0.9 < high < 1.05


def test_standing_joint_of_the_training_is_named(folder, tmp_path):
    state = trained(folder)
    state[:, 7] = -0.03
    ranges, lines = compared(folder, data_set(tmp_path / 'data', state))
    (line,) = (line for line in lines if line.startswith('state'))
    assert line.startswith('state position.panda_finger_joint2 stood still in the training data')
    assert '-0.0004 … -0.0001 m' in line or '-0.0004 … -9.9e-05 m' in line
    (far,) = ranges['state position.panda_finger_joint2'].warnings
    assert 'where the training lies at -1 … 1: compare unit, sign and zero' in far


def test_standing_joint_of_the_data_set_and_another_unit_are_named(folder, tmp_path):
    state = trained(folder)
    state[:, 3] = 2.7
    state[:, 4] = np.degrees(state[:, 4])
    state[:, 5] = np.radians(state[:, 5])
    ranges, _ = compared(folder, data_set(tmp_path / 'data', state))
    assert 'stands still in the data set' in ranges['state axis_angle.x'].warnings[0]
    assert 'compare unit, sign and zero' in ranges['state axis_angle.y'].warnings[0]
    assert 'compare its unit' in ranges['state axis_angle.z'].warnings[0]


def test_columns_of_openpi_are_read(folder, tmp_path):
    state, action = trained(folder), trained(folder, 'actions')
    one = data_set(tmp_path / 'a', state, action)
    other = data_set(tmp_path / 'b', state, action, ('state', 'actions'))
    read = [[(r.low, r.high) for r in compared(folder, root)[0].values()] for root in (one, other)]
    assert read[0] == read[1]


def test_padding_of_a_data_set_is_left_out(folder, tmp_path):
    state, action = trained(folder), trained(folder, 'actions')
    plain = data_set(tmp_path / 'a', state, action)
    padded = data_set(tmp_path / 'b', np.pad(state, ((0, 0), (0, 24))), action)
    np.testing.assert_array_equal(*(data_range.read(r, 'state', 8, 32) for r in (plain, padded)))
    with pytest.raises(ValueError, match='must have the 8 dims of the checkpoint .got 32'):
        data_range.read(padded, 'state', 8, 8)


def test_check_compares_a_checkpoint_with_a_data_set(folder, tmp_path, capsys):
    data = data_set(tmp_path / 'data', trained(folder), trained(folder, 'actions'))
    png = ['--png', str(tmp_path / 'views.png')]
    assert main(['libero', str(folder), '--data', str(data), *png]) == 0
    shown = capsys.readouterr().out
    assert 'range of the training' in shown and 'state axis_angle.z' in shown
    assert 'warning: state position.panda_finger_joint2 stood still in the training' in shown


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (lambda root: data_set(root, np.zeros((4, 6))), 'must have the 8 dims of the checkpoint'),
        (lambda root: root.mkdir(), 'must be a data set of LeRobot'),
        (
            lambda root: data_set(root, np.zeros((4, 8)), columns=('state', 'other')),
            'must have a column action or actions (got state, other)',
        ),
        (lambda root: data_set(root, np.full((4, 8), np.nan)), 'state must be finite numbers'),
    ],
)
def test_data_set_that_does_not_fit_is_refused(folder, tmp_path, capsys, change, reason):
    change(tmp_path / 'data')
    arguments = ['libero', str(folder), '--data', str(tmp_path / 'data')]
    assert main([*arguments, '--png', str(tmp_path / 'views.png')]) == 1
    assert reason in capsys.readouterr().err


def test_data_without_a_checkpoint_is_refused(tmp_path, capsys):
    assert main(['libero', '--data', str(tmp_path)]) == 1
    assert '--data must come with a checkpoint' in capsys.readouterr().err


def test_loading_a_policy_warns_of_a_standing_joint(tmp_path):
    def stand(value):
        numbers = value.get('norm_stats', value)['state']
        numbers['q99'][4] = numbers['q01'][4] + 0.0009

    folder, heard = shutil.copytree(ASSETS / 'tabletop', tmp_path / 'policy'), []
    rewrite(folder / 'norm_stats.json', stand)
    robot, config = Embodiment.load('tabletop'), EngineConfig(time_budget=False)
    load_policy(robot, '', str(folder), config, lambda line: None, heard.append)
    name = robot.state.dimensions[4].name
    assert [line.split(' (')[0] for line in heard] == [
        f'state {name} stood still in the training data'
    ]


def test_picture_without_a_checkpoint_is_refused(tmp_path, capsys):
    assert main(['libero', 'random', '--image', f'image={tmp_path}/absent.png']) == 1
    assert '--image must come with a checkpoint' in capsys.readouterr().err
