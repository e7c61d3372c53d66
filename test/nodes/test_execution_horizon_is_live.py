"""The parameter `execution_horizon` is live and refuses invalid values."""

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.parameter import Parameter

from embodied_kv.config import TINY
from embodied_kv.control import confidence_signal
from embodied_kv.control.execution_horizon import Static
from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.perception import Perception


def fresh(robot, **wanted):
    """Return the next fresh chunk whose fields have these values."""

    def found():
        return [
            chunk
            for chunk in robot.chunks
            if chunk.source == ActionChunk.FRESH
            and all(getattr(chunk, name) == value for name, value in wanted.items())
        ]

    robot.chunks.clear()
    robot.until(found)
    return found()[0]


def begin(robot, **parameters):
    """Start a suite without a time budget, for a busy machine.

    Chunks are denoised however late they are. Return the action node.
    """
    return robot.up(Perception, Action, **{'engine.time_budget': False} | parameters)[1]


def horizon(text):
    return [Parameter('execution_horizon', value=text)]


def test_by_default_the_whole_chunk_may_be_executed(robot):
    begin(robot)
    chunk = fresh(robot)
    assert chunk.execution_horizon == chunk.chunk_size == TINY.chunk_size
    sure = np.array(chunk.confidence)
    assert sure.shape == (TINY.chunk_size,) and ((sure >= 0) & (sure <= 1)).all() and sure.any()


def test_parameter_changes_while_the_robot_acts(robot):
    heard = []
    robot.node.create_subscription(DiagnosticArray, '/diagnostics', heard.append, 10)
    action = begin(robot, execution_horizon='static:3')
    chunk = fresh(robot, execution_horizon=3)
    assert chunk.chunk_size == TINY.chunk_size and chunk.first < 3
    robot.trajectories.clear()
    robot.more(robot.trajectories, 3)
    for trajectory in robot.trajectories:  # three actions and the braking
        last = trajectory.points[-1].time_from_start
        assert last.sec + last.nanosec / 1e9 <= 3 * TINY.action_dt + 0.2
    assert action.set_parameters(horizon('confidence:-1:2'))[0].successful
    # With the threshold -1, every change of an action ends the horizon.
    fresh(robot, execution_horizon=2)
    name = f'{robot.namespace}/action'.lstrip('/')

    def said():
        return [
            {pair.key: pair.value for pair in status.values}
            for message in heard
            for status in message.status
            if status.name == name
        ]

    heard.clear()
    robot.until(said)
    assert 2 <= float(said()[-1]['execution horizon mean (actions)']) <= 3
    assert 0 <= float(said()[-1]['confidence mean']) <= 1


def test_confidence_without_a_signal_gives_way_to_a_constant_horizon(robot, monkeypatch, capfd):
    monkeypatch.setattr(confidence_signal, 'FEWEST', 2)
    monkeypatch.setattr(confidence_signal, 'SIGNAL', 1.1)  # no share is enough
    action = begin(robot, execution_horizon='confidence:0.2:2')
    robot.until(lambda: isinstance(action._policy(), Static))
    fresh(robot, execution_horizon=action._policy().actions)
    lines = []  # the warning follows the change of the policy, on another thread

    def is_logged():
        lines.append(capfd.readouterr().err)
        return 'confidence of actions does not predict' in ''.join(lines)

    robot.until(is_logged)
    assert action.set_parameters(horizon('whole'))[0].successful
    fresh(robot, execution_horizon=TINY.chunk_size)


@pytest.mark.parametrize(
    'text, reason',
    [
        ('static:0', 'H must be an integer >= 1'),
        ('confidence:0.2', 'horizon policy must be whole, static:H'),
        ('os.system', "confidence:T:H_MIN (got 'os.system')"),
    ],
)
def test_invalid_policy_is_refused_and_the_old_one_stays(robot, text, reason):
    action = begin(robot, execution_horizon='static:3')
    answer = action.set_parameters(horizon(text))[0]
    assert not answer.successful
    assert answer.reason.startswith('parameter execution_horizon: ') and reason in answer.reason
    fresh(robot, execution_horizon=3)


def test_invalid_policy_fails_configure(robot, capfd):
    action = robot.bring(Action, execution_horizon='static:many')
    assert action.trigger_configure().name == 'FAILURE'
    assert (
        "configure failed: parameter execution_horizon: horizon policy 'static:many'"
        in capfd.readouterr().err
    )
    assert action.set_parameters(horizon('static:2'))[0].successful
    assert action.trigger_configure().name == 'SUCCESS'
