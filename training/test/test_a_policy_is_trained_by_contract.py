"""A data set of any robot becomes a policy that is served under its contract."""

import sys
import time

import numpy as np
import pytest
import robot_cases
import torch
from robot_cases import CONTRACT, ROBOT, SIZES

from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model import check
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.types import Observation
from training.data.lerobot_reader import LeRobotDataSet
from training.run import __main__ as command
from training.run import training as run_module
from training.run.recipe import RunRecipe
from training.run.training import Training, split

RECIPE = RunRecipe(ground_steps=2, joint_steps=3, batch=4, draws=2, rtc=2)
WORDS = (
    '--preset tiny --threads 1 --device cpu --batch 4 --draws 1 --ground-steps 1 --joint-steps 2'
)


@pytest.fixture(scope='module')
def roots(tmp_path_factory):
    """Return data sets: one with object positions, one also with subtasks, one with neither."""
    folder = tmp_path_factory.mktemp('data')
    (folder / 'gantry.yaml').write_text(robot_cases.TEXT)
    kinds = {
        'knowing': dict(knowing=True),
        'speaking': dict(knowing=True, speaking=True),
        'bare': dict(knowing=False),
    }
    return {'contract': folder / 'gantry.yaml'} | {
        kind: robot_cases.write(
            folder / kind, [robot_cases.episode(seed, **how) for seed in range(3)]
        )
        for kind, how in kinds.items()
    }


@pytest.fixture(scope='module')
def frames(roots):
    torch.set_num_threads(1)
    data = LeRobotDataSet(roots['knowing'], ROBOT)
    return split([data], ROBOT.adapted(TINY), 0, data.objects)


def training(frames, recipe=RECIPE):
    return Training(ROBOT, TINY, recipe, *frames)


def run(monkeypatch, roots, out, kind='knowing', more=()):
    arguments = ['--contract', roots['contract'], '--data', roots[kind], '--out', out, *more]
    monkeypatch.setattr(sys, 'argv', ['run', *WORDS.split(), *map(str, arguments)])
    monkeypatch.setattr(run_module, 'VALIDATION', 1)
    command.main()
    return out / 'policy'


def observed(instruction='slide to the red square'):
    images = tuple(np.zeros((*SIZES[view], 3), np.uint8) for view in CONTRACT.views)
    return Observation(images, np.zeros(5, np.float32), instruction, 0, time.monotonic() + 90, 0)


@pytest.fixture(scope='module')
def policy(roots, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return run(patch, roots, tmp_path_factory.mktemp('out'))


def test_the_policy_is_what_its_contract_says(policy, roots, tmp_path, capsys):
    png = str(tmp_path / 'check.png')
    assert check.main([str(roots['contract']), str(policy), '--png', png]) == 0
    said = capsys.readouterr().out
    assert 'none (mute)' in said
    found = open_checkpoint(policy, ROBOT.declared)
    ROBOT.check(found.config)
    assert (found.config.state_dim, found.config.action_dim) == (5, 4)
    assert found.config.action_dt == 0.05 and found.config.views == ('top', 'side')


def test_an_engine_acts_with_it(policy):
    engine = Engine(
        open_checkpoint(policy, ROBOT.declared).load(), EngineConfig(time_budget=False)
    )
    seen = observed()
    with engine.kv.frames.leases(engine.prefill([seen])) as leases:
        (chunk,) = engine.denoise(leases, [seen.deadline])
    assert chunk.values.shape == (5, 4) and np.isfinite(chunk.values).all()


def test_a_mute_policy_says_so_instead_of_speaking(policy):
    engine = Engine(open_checkpoint(policy).load(), EngineConfig(time_budget=False))
    (handle,) = engine.prefill([observed()])
    with pytest.raises(ValueError, match='this policy is mute: it was trained on data without'):
        engine.open(handle, 'Subtask:')


def test_with_words_it_learns_to_say_them(roots, tmp_path, monkeypatch):
    made = open_checkpoint(run(monkeypatch, roots, tmp_path, 'speaking'))
    assert made.says == ('Subtask:',) and not made.load().is_mute
    assert 'text_exact' in (tmp_path / 'log.csv').read_text()


@pytest.mark.parametrize(('kind', 'more'), [('bare', ()), ('knowing', ('--ungrounded',))])
def test_without_objects_it_learns_actions_alone(roots, tmp_path, monkeypatch, kind, more):
    run(monkeypatch, roots, tmp_path, kind, more)
    rows = [row.split(',') for row in (tmp_path / 'log.csv').read_text().splitlines()[1:]]
    assert {row[2] for row in rows if not row[2].endswith('_min')} == {'flow'}
    assert max(int(row[0]) for row in rows) == 2  # no grounding step


def test_with_objects_validation_says_how_they_are_found(policy):
    names = {row.split(',')[2] for row in (policy.parent / 'log.csv').read_text().splitlines()}
    assert names >= {'flow', 'where', 'where_hit', 'goal_cm', 'detect_name'}
    assert 'detect_colour' not in names


def test_the_loss_of_a_fixed_batch_falls(frames):
    one = training(frames, RunRecipe(ground_steps=0, joint_steps=60, batch=8, draws=1, rate=5e-2))
    batch = one.batch(0)
    first = one.learn(batch)
    for _ in range(30):
        last = one.learn(batch)
    assert last['flow'] < 0.7 * first['flow']
    assert last['where'] < first['where'] and last['goal'] < first['goal']


@pytest.mark.parametrize('cut', [1, 3])
def test_a_run_in_pieces_gives_the_bits_of_a_run(frames, tmp_path, cut):
    whole, first, second = (training(frames) for _ in range(3))
    for step in range(RECIPE.steps):
        whole.learn(whole.batch(step))
    for step in range(cut):
        first.learn(first.batch(step))
    first.keep(tmp_path)
    second.restore(tmp_path)
    assert second.step == cut
    for step in range(cut, RECIPE.steps):
        second.learn(second.batch(step))
    whole.keep(tmp_path / 'whole')
    second.keep(tmp_path / 'pieces')
    one, pieces = (open_checkpoint(tmp_path / part / 'policy') for part in ('whole', 'pieces'))
    weights = pieces.load().model.state_dict()
    for name, value in one.load().model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    for name in ('norm_stats.json', 'tokenizer.json'):
        assert (one.path / name).read_bytes() == (pieces.path / name).read_bytes()


def test_other_data_does_not_go_on_with_a_run(frames, roots, tmp_path):
    training(frames).keep(tmp_path)
    other = LeRobotDataSet(roots['bare'], ROBOT)
    with pytest.raises(ValueError, match='was made with another data: give the same, or another'):
        Training(
            ROBOT, TINY, RECIPE, frames[0], split([other], ROBOT.adapted(TINY), 0, ())[1]
        ).restore(tmp_path)


@pytest.mark.parametrize(
    ('contract', 'said'),
    [
        ('tabletop', 'fps of the data set must be that of tabletop, 10 (got 20)'),
        ('so101', 'fps of the data set must be that of so101, 30 (got 20)'),
        ('libero', 'libero: checkpoint.state_in_prompt is False, which is of other projects'),
        ('nobody', 'must be a file or one of'),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    roots, tmp_path, monkeypatch, capsys, contract, said
):
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, roots | {'contract': contract}, tmp_path)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('python -m training.run: ') and said in line


def test_a_batch_that_does_not_divide_is_refused_before_anything_is_read(
    roots, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(command, 'LeRobotDataSet', None)
    with pytest.raises(SystemExit):
        run(monkeypatch, roots, tmp_path, more=('--threads', '3'))
    assert '--threads 3: a batch of 4 does not divide' in capsys.readouterr().err


@pytest.mark.parametrize('there', [1, 2, 6, 7, 10, 12, 24, 64, 96])
@pytest.mark.parametrize('batch', [1, 4, 60, 64])
def test_a_batch_is_split_over_as_many_cores_as_divide_it(batch, there):
    shards = command.shards_of(batch, there, is_given=False)
    assert batch % shards == 0 and shards <= there
    assert not any(batch % n == 0 for n in range(shards + 1, there + 1))


def test_one_episode_alone_is_refused(tmp_path, roots, monkeypatch, capsys):
    roots = roots | {'one': robot_cases.write(tmp_path / 'one', [robot_cases.episode(0)])}
    with pytest.raises(SystemExit):
        run(monkeypatch, roots, tmp_path / 'out', 'one')
    assert 'the data must have at least two episodes' in capsys.readouterr().err
