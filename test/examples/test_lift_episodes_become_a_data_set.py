"""Episodes of the expert, recorded and exported, are read unchanged: numbers, text and images."""

import contextlib
import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from mcap.records import Metadata

from embodied_kv.data.episodes import Cut
from embodied_kv.data.export import export
from embodied_kv.data.recording_file import END, RecordingFullError
from embodied_kv.data.recording_reader import Recording, Records
from embodied_kv.data.repair import repair
from training.data.lerobot_reader import LeRobotDataSet


@pytest.fixture
def record(module):
    return module('recording')


@pytest.fixture
def task(record, module):
    return module('record').TASK


@pytest.fixture
def recorded(record, task, world, tmp_path):
    """Return a recording of two episodes, and these episodes."""
    file = record.Episodes(tmp_path / 'lift.mcap', task, 'png')
    episodes = [record.episode(world, task, seed) for seed in (3, 4)]
    for moments in episodes:
        file.add(moments)
    file.finish()
    return tmp_path / 'lift.mcap', episodes


def test_every_step_is_a_frame(recorded, task, tmp_path):
    (path, episodes), robot = recorded, task.robot
    done = export([path], tmp_path / 'set', Cut())
    assert done.frames == sum(map(len, episodes)) and not done.damage
    read = LeRobotDataSet(tmp_path / 'set', robot)
    assert read.lengths == tuple(map(len, episodes))
    for number, moments in enumerate(episodes):
        found = read.read(number)
        commands = robot.actions.policy(np.stack([command for _, command in moments]))
        joints = np.stack([seen['joints'][:7] for seen, _ in moments])
        np.testing.assert_allclose(found.action, commands, atol=1e-6)
        np.testing.assert_allclose(found.state[:, :7], joints, atol=1e-6)
        assert set(found.tasks) == {'lift the red cube'}
        assert found.images['wrist'][:, 0, 0, 0].tolist() == [100 + i for i in range(len(moments))]


def test_where_the_cube_is_is_in_the_recording(recorded):
    told = [m for m in Recording(recorded[0]).messages() if m.topic == 'truth/red_cube']
    assert len(told) == sum(map(len, recorded[1]))
    point = told[0].read().point
    assert (point.x, point.y, point.z) == (0.5, 0.1, -0.1)


def test_an_episode_in_which_nothing_was_lifted_is_left_out(record, task, world):
    world.lasts = 10_000
    assert record.episode(world, task, 0) is None


def test_a_disturbed_arm_is_told_something_else_than_what_is_recorded(record, task, world):
    always = SimpleNamespace(pushes=lambda *_: itertools.repeat(np.full(8, 0.5)))
    moments = record.episode(world, dataclasses.replace(task, disturbed=always), 0)
    commands = np.stack([command for _, command in moments])
    np.testing.assert_allclose(np.stack(world.told) - commands, 0.5)


def _is_end(record):
    return isinstance(record, Metadata) and record.name == END


def end_of(path):
    """Return the reason for its end that a complete file states."""
    (end,) = [r.metadata['end'] for r in Records(path) if _is_end(r)]
    return end


@pytest.mark.parametrize('error', [RuntimeError('the world has ended'), KeyboardInterrupt()])
def test_a_recording_that_is_broken_off_is_whole_and_says_why(
    record, task, world, tmp_path, error
):
    path = tmp_path / 'lift.mcap'
    file = record.Episodes(path, task, 'png')
    with pytest.raises(type(error)), record.finished(file):
        file.add(record.episode(world, task, 3))
        raise error
    assert end_of(path) == f'it was broken off: {str(error) or "KeyboardInterrupt"}'
    assert export([path], tmp_path / 'set', Cut()).episodes == 1


def test_what_a_disk_that_refuses_leaves_can_be_repaired(record, task, world, tmp_path):
    file = record.Episodes(tmp_path / 'lift.mcap', task, 'png')
    with pytest.raises(OSError, match='refused'), record.finished(file):
        file.add(record.episode(world, task, 3))
        raise OSError('refused')
    repair(tmp_path / 'lift.mcap.part')
    assert export([tmp_path / 'lift.mcap'], tmp_path / 'set', Cut()).episodes == 1


def test_a_full_recording_is_whole_and_it_is_said_what_to_do(
    record, module, task, world, tmp_path, monkeypatch, capsys
):
    path = tmp_path / 'lift.mcap'
    here = dataclasses.replace(task, open=lambda size: contextlib.nullcontext(world))
    monkeypatch.setattr(module('record'), 'TASK', here)
    monkeypatch.setattr(record, 'MOST', 2**17)
    monkeypatch.setattr('sys.argv', ['record', str(path), '--episodes', '99'])
    with pytest.raises(SystemExit):
        module('record').main()
    assert f'{path} is full: record the other starts' in capsys.readouterr().err
    assert end_of(path) == f'it was broken off: {RecordingFullError.__name__}'


def test_disturbances_are_a_function_of_the_seed_and_some_episodes_have_none(task):
    def first(seed, count=40):
        pushes = task.disturbed.pushes(np.random.default_rng(seed), joints=8, dt=0.05)
        return np.stack([*itertools.islice(pushes, count)])

    assert (first(5) == first(5)).all() and not first(5)[:, 7].any()  # the finger is never pushed
    calm = [not first(seed).any() for seed in range(60)]
    assert 10 < sum(calm) < 40
