"""Episodes of two arms with their own joint states, recorded and exported, are read unchanged."""

import numpy as np
import pytest

from embodied_kv.data.episodes import Cut
from embodied_kv.data.export import export
from training.data.lerobot_reader import LeRobotDataSet

VIEWS = 'high', 'left_wrist', 'right_wrist'


class World:
    """Two arms; the expert moves both by 0.01 per step, and the task is done after 12 steps."""

    def reset(self, seed):
        self.steps, self.joints = 0, np.linspace(-0.6, 0.6, 14)
        self.joints[[6, 13]] = 0.03, 0.05
        return self.seen()

    def step(self, joints):
        self.steps, self.joints = self.steps + 1, np.array(joints)
        return self.seen()

    def expert(self):
        return self.joints + np.where(np.arange(14) % 7 == 6, 0.0005, 0.01)

    def seen(self):
        level = np.full((16, 16, 3), 10 * self.steps, np.uint8)
        return {
            'time': self.steps / 10,
            'joints': self.joints.copy(),
            'speeds': np.zeros(14),
            'pictures': {view: level + place for place, view in enumerate(VIEWS)},
            'done': self.steps >= 12,
            'cube': np.array([0.1, 0.5, 0.02]),
            'pixels': dict.fromkeys(VIEWS, np.array([8.0, 4.0])),
        }


@pytest.fixture
def recorded(transfer, tmp_path):
    """Return a recording of an episode, the episode, and the task."""
    recording, task = transfer('recording'), transfer('record').TASK
    file = recording.Episodes(tmp_path / 'transfer.mcap', task, 'png')
    file.add(moments := recording.episode(World(), task, 0))
    file.finish()
    return tmp_path / 'transfer.mcap', moments, task


def test_every_step_of_both_arms_is_a_frame(recorded, tmp_path):
    path, moments, task = recorded
    export([path], tmp_path / 'set', Cut())
    read = LeRobotDataSet(tmp_path / 'set', task.robot)
    assert read.lengths == (len(moments),)
    found, robot = read.read(0), task.robot
    commands = robot.actions.policy(np.stack([command for _, command in moments]))
    np.testing.assert_allclose(found.action, commands, atol=1e-5)
    joints = np.stack([seen['joints'] for seen, _ in moments])
    np.testing.assert_allclose(found.state, robot.actions.policy(joints), atol=1e-5)
    assert set(found.tasks) == {'transfer the red cube'}
    assert found.images['right_wrist'][:, 0, 0, 0].tolist() == [10 * i + 2 for i in range(12)]


def test_where_the_cube_is_stands_beside_each_frame(transfer, recorded, tmp_path):
    path, moments, task = recorded
    export([path], tmp_path / 'set', Cut())
    assert transfer('columns').add(task.robot, [path], tmp_path / 'set') == len(moments)
    assert LeRobotDataSet(tmp_path / 'set', task.robot).objects == ('red cube',)


def test_fingers_are_never_disturbed(transfer):
    pushes = transfer('record').TASK.disturbed.pushes(np.random.default_rng(1), 14, 0.1)
    told = np.abs(np.stack([next(pushes) for _ in range(40)])).max(axis=0)
    assert not told[[6, 13]].any() and np.delete(told, [6, 13]).all()
