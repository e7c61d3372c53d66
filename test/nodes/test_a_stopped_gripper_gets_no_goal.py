"""A stop cancels the goal of a gripper and sends no other; a lost goal ends with its server."""

import math
from threading import Lock, RLock, Thread
from types import SimpleNamespace

import numpy as np
import pytest

from embodied_kv.control.command import FRESH, STOP, Setpoint
from embodied_kv.nodes.control import arm_outputs
from embodied_kv.nodes.control.action_outputs import ANSWER, GoalClient, GripperClient
from embodied_kv.nodes.control.arm_outputs import ArmOutputs
from embodied_kv.robots.channels import GRIPPER, JOINT_STATE, TRAJECTORY
from embodied_kv.robots.mapping import Output


class Publisher:
    def __init__(self):
        self.sent, self.cancelled = [], 0

    def publish(self, message):
        self.sent.append(message)

    def cancel(self):
        self.cancelled += 1


def controller(kind, *index):
    axes = tuple(f'joint_{i}' for i in index)
    output = Output(f'{kind}_{axes[0]}', kind, axes, index, False, '', 0.0)
    return SimpleNamespace(output=output, publisher=Publisher())


@pytest.fixture
def outputs(monkeypatch):
    """Return outputs of two arms, a gripper with goals and one with positions."""
    made = ArmOutputs.__new__(ArmOutputs)
    made._positions = [controller(GRIPPER, 4), controller(JOINT_STATE, 5)]
    made._trajectories = [controller(TRAJECTORY, 0, 1), controller(TRAJECTORY, 2, 3)]
    made._link, made._stamped = None, lambda: False
    made._node = SimpleNamespace(
        get_clock=lambda: SimpleNamespace(now=lambda: SimpleNamespace(to_msg=lambda: None))
    )
    monkeypatch.setattr(arm_outputs, 'setpoint_message', lambda output, values, now: values)
    monkeypatch.setattr(
        arm_outputs.conversions, 'trajectory_message', lambda points, *others: points
    )
    return made


def setpoint(source, *values):
    values = np.array(values or (0.1,) * 6)
    return Setpoint(values, values, np.zeros(6), source, 0.0)


def motion(source, *place):
    points = np.array([place or (0.1,) * 6])
    return SimpleNamespace(
        source=source, points=points, velocities=np.zeros_like(points), times=np.array([0.1])
    )


def test_a_stop_cancels_and_sends_no_goal(outputs):
    gripper, other = (each.publisher for each in outputs._positions)
    outputs.command(motion(STOP))
    outputs.setpoint(setpoint(STOP))
    assert gripper.cancelled == 1 and not gripper.sent and len(other.sent) == 1
    outputs.setpoint(setpoint(FRESH))
    assert len(gripper.sent) == 1


def test_a_controller_with_an_unknown_position_gets_no_trajectory(outputs):
    left, right = (each.publisher for each in outputs._trajectories)
    outputs.command(motion(STOP, 0.1, math.nan, 0.1, 0.1, 0.1, 0.1))
    assert not left.sent and len(right.sent) == 1


@pytest.fixture
def client():
    made, made.now, made.ready = GoalClient.__new__(GoalClient), 0.0, True
    made.name, made._lock, made._asked = 'finger', Lock(), {1: 0.0}
    made._clock = lambda: made.now
    made._client = SimpleNamespace(server_is_ready=lambda: made.ready)
    return made


def test_a_goal_without_an_answer_is_a_problem(client):
    client.now = ANSWER + 1.0
    assert 'did not answer a goal' in client.problem()


def test_a_server_that_was_restarted_is_not_asked_for_earlier_goals(client):
    client.now, client.ready = ANSWER + 1.0, False
    assert 'no action server' in client.problem()
    client.ready = True
    assert client.problem() == ''


def test_a_controller_that_gets_no_message_costs_the_others_nothing(outputs):
    left, right = (each.publisher for each in outputs._trajectories)
    left.publish = lambda message: (_ for _ in ()).throw(RuntimeError('not published'))
    with pytest.raises(RuntimeError, match='not published'):
        outputs.command(motion(STOP))
    assert len(right.sent) == 1 and outputs._positions[0].publisher.cancelled == 1


class Gripper(GripperClient):
    """A gripper without ROS. choosing: called between the choice of a position and its goal."""

    def __init__(self):
        self._lock, self._waiting, self._clock = Lock(), RLock(), lambda: 1.0
        self._wanted, self._sent, self._at = None, None, -1.0
        self._number = self._cancelled = 0
        self._handles = {}
        self.choosing = lambda: None

    def _goal(self, position):
        self.choosing()
        return position

    def send(self, goal):
        with self._lock:
            self._number += 1


def test_a_goal_that_is_being_sent_is_cancelled_with_the_others():
    gripper, done = Gripper(), []
    stop = Thread(target=lambda: (gripper.cancel(), done.append(gripper._number)))
    gripper.choosing = lambda: (stop.start(), stop.join(0.05))
    gripper.publish(SimpleNamespace(position=[0.04]))
    stop.join()
    assert done == [1] and gripper._cancelled == gripper._number
