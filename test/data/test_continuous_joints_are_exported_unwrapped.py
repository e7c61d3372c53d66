"""A continuous joint has no jumps in a data set, even if its driver wraps the angle."""

import math

import numpy as np
import pytest
import yaml
from bag_cases import BEGIN, CONTRACT, ROBOT, SECOND, Bag, stamped
from sensor_msgs.msg import JointState

from embodied_kv.data.episodes import Cut, Episodes
from embodied_kv.data.recording_reader import Recording
from embodied_kv.data.signals import unbroken
from embodied_kv.msg import ActionChunk
from embodied_kv.robots.reading import of_text, to_text

TURNING = ROBOT.axes.index('wrist_roll')


def endless():
    """Return the contract with a continuous wrist."""
    contract = yaml.safe_load(to_text(CONTRACT))
    limits = {'velocity': 6.0, 'acceleration': 60.0, 'continuous': True}
    contract['limits']['wrist_roll'] = limits
    return of_text(yaml.safe_dump(contract, sort_keys=False), 'endless')


def turning(moment):
    """Return the wrist's angle (rad), which passes pi 0.3 s after the beginning."""
    return math.pi - 0.3 + moment


class TurningBag(Bag):
    """A recording whose joint states and chunks differ by whole turns of the wrist."""

    def __init__(self, path, turns=0):
        super().__init__(path, endless())
        self.turns = turns

    def feel(self, at, value=None, delay=0.002):
        positions = [0.02] * len(ROBOT.joints)
        positions[TURNING] = math.remainder(turning(at), 2 * math.pi)
        message = JointState(name=list(ROBOT.joints), position=positions)
        self.put('joint_states', at + delay, stamped(message, BEGIN + round(at * SECOND)))

    def command(self, at, answers, rows=10):
        values = np.full((rows, len(ROBOT.axes)), 0.02)
        values[:, TURNING] = [turning(answers + i / 10) for i in range(rows)]
        values[:, TURNING] += self.turns * 2 * math.pi
        message = ActionChunk(
            dt=0.1,
            chunk_size=rows,
            values=values.ravel().tolist(),
            first=1,
            execution_horizon=rows,
            source=ActionChunk.FRESH,
            age=at - answers,
            joint_names=list(ROBOT.axes),
        )
        self.put('action_chunk', at, stamped(message, BEGIN + round(answers * SECOND)))


@pytest.mark.parametrize('turns', [0, 3, -1])
def test_episode_has_no_jumps_and_actions_near_the_arm(tmp_path, turns):
    bag = TurningBag(tmp_path / 'walk.mcap', turns).lives(3.0)
    (signals,) = unbroken(Recording(bag.finish()))
    (episode,) = Episodes(signals, Cut()).found
    moments = np.array([(m.stamp - BEGIN) / SECOND for m in episode])
    states = np.array([m.state[TURNING] for m in episode])
    actions = np.array([m.action[TURNING] for m in episode])
    np.testing.assert_allclose(states, [turning(m) for m in moments], atol=0.05)
    np.testing.assert_allclose(actions, [turning(m) for m in moments], atol=0.05)


def test_each_episode_begins_within_half_a_turn(tmp_path):
    bag = TurningBag(tmp_path / 'walk.mcap').lives(5.0)
    bag.tell(2.5, 'push')
    (signals,) = unbroken(Recording(bag.finish()))
    first, second = Episodes(signals, Cut()).found
    assert abs(first[0].state[TURNING]) <= math.pi < first[-1].state[TURNING]
    begin = (second[0].stamp - BEGIN) / SECOND
    expected = turning(begin) - 2 * math.pi
    assert second[0].state[TURNING] == pytest.approx(expected, abs=0.05)
    assert second[0].action[TURNING] == pytest.approx(expected, abs=0.05)
