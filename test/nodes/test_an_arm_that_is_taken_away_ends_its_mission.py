"""A mission ends if its arm is stopped, disarmed or taken over, whatever the mission is doing.

It also ends if the arm is armed again, or given back, before the next step.
"""

import pytest
from action_msgs.msg import GoalStatus
from mission_suite import TableSuite
from rclpy.action import ActionClient
from std_srvs.srv import SetBool, Trigger

from embodied_kv.action import Mission as MissionAction
from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.msg import ControlState
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.mission import Mission as MissionNode
from embodied_kv.nodes.missions import clients
from embodied_kv.nodes.session import Session
from embodied_kv.srv import CapsuleRollback
from training.planner.missions import Mission, Part, Which
from training.planner.simulated_table import SimulatedTable

LYING = SimulatedTable({'red cube': TABLE}, ('green bin',))
AWAY = Mission((Part('put', Which(names=('red cube',)), 'green bin'),))
STATES = {
    ControlState.STOPPED: 'stopped (a client of control/stop): reset it, then arm it',
    ControlState.DISARMED: 'disarmed: arm it',
    ControlState.TAKEN_OVER: 'an operator has taken over: give it back',
}
LOST = pytest.mark.parametrize('state', STATES)


class Unheard(TableSuite):
    """A suite that publishes no state of its arm at its start."""

    arm = None


@pytest.fixture
def suite(robot):
    suite = TableSuite(robot, LYING, AWAY)
    suite.up()
    return suite


def lose(suite, *states):
    for state in states:
        suite.say_arm(state, STATES.get(state, ''))


def ended(suite, goal):
    """Assert that a goal was aborted and its step was not sent; return its message."""
    status, result = suite.result(goal)
    assert status == GoalStatus.STATUS_ABORTED and not suite.goals
    assert 'put the red cube into the green bin' not in suite.calls
    return result.message


@LOST
def test_arm_taken_away_during_a_scene_query_ends_the_mission(suite, state):
    suite.mute = True
    goal = suite.send()
    suite.robot.until(lambda: suite.asked, show=False)
    lose(suite, state, ControlState.ARMED)
    assert ended(suite, goal) == f'the arm may not be moved: {STATES[state]}'
    suite.mute = False
    assert suite.result(suite.send())[1].success, 'the next one is none the worse for it'


@LOST
def test_while_it_plans(suite, state):
    suite.interrupt = lambda _: lose(suite, state, ControlState.ARMED)
    assert STATES[state] in ended(suite, suite.send())


def test_a_stop_is_not_undone_by_a_reset(suite):
    lost = ControlState.STOPPED, ControlState.DISARMED, ControlState.ARMED
    suite.interrupt = lambda _: lose(suite, *lost)
    assert 'stopped' in ended(suite, suite.send())


def test_during_a_step_the_arm_comes_to_rest(suite):
    suite.slow = True
    goal = suite.send()
    suite.robot.until(lambda: suite.goals, show=False)
    lose(suite, ControlState.TAKEN_OVER)
    assert 'taken over' in suite.result(goal)[1].message
    suite.robot.until(lambda: not suite.goals, show=False)


def test_a_mission_that_a_capsule_brought_back_has_no_goal_and_ends_so_too(robot, tmp_path):
    suite = TableSuite(robot, LYING, AWAY)
    suite.up(Session, capsule_directory=str(tmp_path))
    suite.slow = True
    goal = suite.send()
    robot.until(lambda: suite.goals, show=False)
    back = robot.call(CapsuleRollback, 'capsule/rollback', name='mission-boundary-1')
    assert back.success, back.message
    assert suite.result(goal)[1].message == 'a capsule takes its place'
    robot.until(lambda: suite.goals and suite.node._running.handle is None, show=False)
    lose(suite, ControlState.DISARMED)
    why = STATES[ControlState.DISARMED]
    robot.until(lambda: not suite.goals and why in suite.told[-1].message, show=False)
    assert not suite.told[-1].running


def test_an_arm_that_stays_armed_ends_nothing(suite):
    suite.interrupt = lambda _: suite.say_arm(ControlState.ARMED, 'no instruction')
    assert suite.result(suite.send())[1].success


def test_rearming_in_the_meantime_lets_the_mission_continue(suite):
    lose(suite, ControlState.DISARMED)
    suite.robot.until(lambda: suite.node._arm == ControlState.DISARMED, show=False)
    suite.interrupt = lambda _: suite.say_arm(ControlState.ARMED)
    assert suite.result(suite.send())[1].success


def test_nothing_begins_before_the_arms_state_is_heard(robot):
    suite = Unheard(robot, LYING, AWAY)
    suite.up()
    goal = suite.send()
    suite.robot.spin(0.5)
    assert not suite.asked and 'look' not in suite.calls
    suite.say_arm(ControlState.ARMED)
    assert suite.result(goal)[1].success


def test_an_arm_of_which_nobody_says_how_it_stands_is_not_moved(robot, monkeypatch):
    suite = Unheard(robot, LYING, AWAY)
    suite.up()
    monkeypatch.setattr(clients, 'PATIENCE', 0.2)
    assert ended(suite, suite.send()) == 'control/state is not there: is its node active?'


def test_an_action_node_says_it(robot):
    _, node = robot.up(Action, MissionNode, instruction='')
    robot.until(lambda: robot.suite[0]._joints.now() is not None)
    client = ActionClient(robot.node, MissionAction, 'mission')
    assert client.wait_for_server(60.0)
    sent = client.send_goal_async(MissionAction.Goal(mission='tidy up'))
    robot.until(lambda: sent.done() and node._arm == ControlState.ARMED)
    for kind, name, how in (
        (Trigger, 'stop', {}),
        (Trigger, 'reset', {}),
        (SetBool, 'arm', {'data': True}),
    ):
        robot.show()
        assert robot.call(kind, f'control/{name}', **how).success
    over = sent.result().get_result_async()
    robot.until(over.done)
    assert 'stopped (a client of control/stop)' in over.result().result.message
    client.destroy()
