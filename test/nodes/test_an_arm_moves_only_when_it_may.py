"""The services of a running suite arm, stop, reset and take over the arm."""

import threading

import numpy as np
import pytest
from rclpy.clock import ClockType
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from embodied_kv.msg import ActionChunk, ControlState
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.perception import Perception


@pytest.fixture
def states(robot):
    """Return the messages on control/state, the newest last."""
    heard = []
    robot.node.create_subscription(ControlState, 'control/state', heard.append, qos.STATUS)
    return heard


def call(robot, name, data=None):
    if data is None:
        return robot.call(Trigger, f'control/{name}')
    return robot.call(SetBool, f'control/{name}', data=data)


def moves(robot):
    robot.trajectories.clear()
    robot.until(lambda: robot.trajectories)


def rests(robot):
    """Assert that nothing is sent for some periods, although images arrive."""
    for _ in range(16):
        robot.show()
        robot.spin(0.05)
        if _ == 7:
            robot.trajectories.clear()
    assert not robot.trajectories


def tell(robot):
    """Publish the instruction until it is in force, because a stop cleared it."""
    robot.instruction.publish(String(data='reach'))
    robot.more(robot.handles, 2)


def test_launch_alone_moves_nothing(robot, states):
    robot.up(Perception, Action, armed=False)
    robot.more(robot.handles, 4)
    assert not robot.trajectories and not robot.chunks
    assert states[-1].state == ControlState.DISARMED and 'arm it' in states[-1].reason


def test_arm_moves_armed_and_rests_disarmed(robot, states):
    robot.up(Perception, Action, armed=False)
    robot.more(robot.handles, 2)
    assert call(robot, 'arm', True).success
    moves(robot)
    robot.until(lambda: states[-1].state == ControlState.ARMED and not states[-1].reason)
    assert 'rest' in call(robot, 'arm', False).message
    rests(robot)


def test_a_stop_is_latched_until_a_reset_and_arming(robot, states):
    robot.up(Perception, Action)
    moves(robot)
    stopped = call(robot, 'stop')
    assert stopped.success and 'stopped; ' in stopped.message and 'at rest' in stopped.message
    rests(robot)
    assert states[-1].state == ControlState.STOPPED and 'control/stop' in states[-1].reason
    refused = call(robot, 'arm', True)
    assert not refused.success and 'reset it first' in refused.message
    assert call(robot, 'reset').success
    rests(robot)
    assert call(robot, 'arm', True).success
    rests(robot)
    assert states[-1].reason == 'no instruction'
    tell(robot)
    moves(robot)


def test_an_instruction_from_before_a_reset_moves_nothing_after_it(robot, states):
    perception, _ = robot.up(Perception, Action)
    moves(robot)
    assert call(robot, 'stop').success
    robot.until(lambda: not perception._frames.instruction)
    tell(robot)  # as a capsule that was being restored when the stop came
    assert call(robot, 'reset').success
    robot.until(lambda: not perception._frames.instruction)
    assert call(robot, 'arm', True).success
    rests(robot)
    assert states[-1].reason == 'no instruction'
    tell(robot)
    moves(robot)


def test_a_reset_without_a_stop_leaves_the_instruction(robot, states):
    robot.up(Perception, Action)
    moves(robot)
    assert call(robot, 'reset').success
    moves(robot)


def test_a_stop_outlives_deactivation_and_activation(robot, states):
    _, action = robot.up(Perception, Action)
    moves(robot)
    assert call(robot, 'stop').success
    action.trigger_deactivate()
    action.trigger_activate()
    tell(robot)
    rests(robot)
    assert states[-1].state == ControlState.STOPPED and 'control/stop' in states[-1].reason


def test_a_stop_of_an_inactive_node_is_latched_and_clears_the_instruction(robot, states):
    perception, action = robot.up(Perception, Action)
    moves(robot)
    action.trigger_deactivate()
    stopped = call(robot, 'stop')
    assert stopped.success and 'not active' in stopped.message
    assert not call(robot, 'arm', True).success and not call(robot, 'takeover', True).success
    robot.until(lambda: not perception._frames.instruction)
    robot.until(lambda: states[-1].state == ControlState.STOPPED)
    assert 'not active' in states[-1].reason and 'control/stop' in states[-1].reason
    action.trigger_activate()
    rests(robot)
    action.trigger_deactivate()
    assert call(robot, 'reset').success
    action.trigger_activate()
    assert call(robot, 'arm', True).success
    rests(robot)
    tell(robot)
    moves(robot)


def test_an_arm_that_was_disarmed_is_not_armed_by_activation(robot, states):
    _, action = robot.up(Perception, Action)
    moves(robot)
    assert call(robot, 'arm', False).success
    action.trigger_deactivate()
    action.trigger_activate()
    rests(robot)
    assert states[-1].state == ControlState.DISARMED


def test_an_operator_takes_over_and_gives_back(robot, states):
    robot.up(Perception, Action)
    moves(robot)
    assert call(robot, 'takeover', True).success
    rests(robot)
    assert states[-1].state == ControlState.TAKEN_OVER
    assert robot.handles, 'observation goes on'
    assert call(robot, 'takeover', False).success
    moves(robot)
    robot.until(lambda: states[-1].state == ControlState.ARMED)
    assert 0 < states[-1].human_share < 1


def test_arm_without_joint_states_cannot_be_armed(robot):
    robot.up(Perception, Action, armed=False)
    refused = call(robot, 'arm', True)
    assert not refused.success and 'not armed' in refused.message


def test_moving_arm_cannot_be_armed(robot):
    robot.up(Perception, Action, armed=False)
    for position in np.arange(0.0, 0.5, 0.05):
        robot.show(positions=position)
        robot.spin(0.05)
    refused = call(robot, 'arm', True)
    assert not refused.success and 'still moves' in refused.message
    robot.more(robot.handles, 4, positions=0.5)
    assert call(robot, 'arm', True).success
    moves(robot)


def test_empty_instruction_stops_and_another_moves_the_arm(robot):
    robot.up(Perception, Action)
    moves(robot)
    robot.instruction.publish(String(data=''))
    robot.trajectories.clear()
    robot.spin(0.5)
    robot.trajectories.clear()
    for _ in range(5):
        robot.show()
        robot.spin(0.1)
    assert not robot.trajectories
    robot.instruction.publish(String(data='reach'))
    moves(robot)


def test_shadow_mode_publishes_chunks_and_commands_nothing(robot, states):
    robot.up(Perception, Action, armed=False, shadow=True)
    robot.more(robot.chunks, 4)
    assert not robot.trajectories and states[-1].shadow
    assert call(robot, 'stop').success and call(robot, 'reset').success
    rehearsed = call(robot, 'arm', True)
    assert rehearsed.success and 'nothing is commanded' in rehearsed.message
    tell(robot)
    robot.chunks.clear()
    robot.until(lambda: any(chunk.source == ActionChunk.FRESH for chunk in robot.chunks))
    assert not robot.trajectories and states[-1].shadow


def test_shadow_mode_sends_no_zeros_at_its_end(robot, monkeypatch):
    robot.up(Perception, Action, shadow=True)
    zeros = []
    monkeypatch.setattr(robot.suite[1]._outputs, 'zero', lambda: zeros.append(True))
    robot.suite[1].trigger_deactivate()
    assert not zeros


def test_no_timer_of_the_control_services_depends_on_the_system_clock(robot):
    robot.up(Perception, Action)
    timers = [*robot.suite[1]._control_services.node.timers]
    assert timers and {timer.clock.clock_type for timer in timers} == {ClockType.STEADY_TIME}


def test_state_is_published_again_when_the_reason_changes(robot, states):
    robot.up(Perception, Action)
    missing = 'no joint state received on joint_states'
    robot.until(lambda: states and missing in states[-1].reason, show=False)
    robot.until(lambda: states[-1].state == ControlState.ARMED and not states[-1].reason)


def test_an_arm_that_is_meant_to_stand_logs_no_error(robot, capfd):
    robot.up(Perception, Action)
    moves(robot)
    robot.instruction.publish(String(data=''))
    robot.until(lambda: any(chunk.source == ActionChunk.HOLD for chunk in robot.chunks))
    assert call(robot, 'arm', False).success
    robot.spin(0.5)
    said = capfd.readouterr().err
    assert 'no fresh chunk' not in said and 'chunk refused' not in said


def test_reason_of_a_stop_is_logged(robot, capfd):
    robot.up(Perception, Action)
    moves(robot)
    assert call(robot, 'stop').success
    robot.spin(0.5)
    assert 'a client of control/stop: stop' in capfd.readouterr().err


def test_fault_that_disarms_is_logged_once(robot, capfd):
    _, node = robot.up(Perception, Action)
    moves(robot)
    for _ in range(2):
        node._safety.disarm('the arm stood for 3 s')
    assert capfd.readouterr().err.count('arm disarmed: the arm stood for 3 s; arm it') == 1


def test_brake_at_the_end_of_the_process_logs_no_missing_chunk(robot, capfd):
    nodes = robot.up(Perception, Action)
    moves(robot)
    for node in nodes:
        node.brake()
    robot.spin(0.2)
    assert 'no fresh chunk' not in capfd.readouterr().err


def test_a_stop_waits_for_no_other_callback(robot, states):
    robot.up(Perception, Action)
    moves(robot)
    client = robot.node.create_client(Trigger, 'control/stop')
    assert client.wait_for_service(60.0)
    stopped = threading.Event()
    robot.suite[1]._safety.watch(stopped.set)
    client.call_async(Trigger.Request())
    assert stopped.wait(5.0), 'nobody spins the suite, and yet it stops'


def test_instruction_outlives_deactivation_and_activation(robot, states):
    _, action = robot.up(Perception, Action, armed=False, instruction='')
    action.trigger_deactivate()
    action.trigger_activate()
    robot.until(lambda: states and 'no instruction' in states[-1].reason)
    action.trigger_deactivate()
    robot.instruction.publish(String(data='reach'))
    robot.more(robot.handles, 1)
    action.trigger_activate()
    robot.until(lambda: states[-1].reason == 'disarmed: arm it')


def test_inactive_node_reports_that_it_is_inactive(robot, states):
    _, action = robot.up(Perception, Action)
    moves(robot)
    action.trigger_deactivate()
    refused = call(robot, 'arm', True)
    assert not refused.success and 'not active' in refused.message
