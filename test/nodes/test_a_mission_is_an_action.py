"""The action `mission` carries out a goal in words and reports its progress.

A stand-in that answers truthfully replaces the other nodes; no policy is involved.
"""

import pytest
from action_msgs.msg import GoalStatus
from mission_suite import TableSuite
from std_msgs.msg import String

from embodied_kv.capsule.capsule import FrozenPart
from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.errors import ErrorCode
from embodied_kv.nodes.control.session_parts import InstructionPart
from embodied_kv.nodes.session import Session
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.srv import CapsuleList, CapsuleRollback, CapsuleSnapshot
from training.planner.missions import Mission, Part, Which
from training.planner.simulated_table import SimulatedTable

LYING = SimulatedTable({'red cube': TABLE, 'blue cylinder': TABLE}, ('green bin',))
TIDY = Mission(
    (
        Part('put', Which(names=('red cube', 'blue cylinder')), 'green bin'),
        Part('say', Which(), 'green bin', about='inside'),
    )
)
SAID = 'the green bin holds the blue cylinder and the red cube'


@pytest.fixture
def suite(robot):
    suite = TableSuite(robot, LYING, TIDY)
    suite.up()
    return suite


def test_a_mission_is_done_step_by_step_and_says_what_it_was_asked_to(suite):
    goal = suite.send()
    assert goal.accepted
    status, result = suite.result(goal)
    assert status == GoalStatus.STATUS_SUCCEEDED and result.success, result.message
    assert result.answers == [SAID] and result.steps == 3 and result.seconds > 0
    assert suite.table.where == {'red cube': 'green bin', 'blue cylinder': 'green bin'}
    assert 'task 1: put the red cube into the green bin, from the table' in suite.memory()
    suite.robot.until(lambda: suite.told and not suite.told[-1].running, show=False)
    assert suite.told[-1].success and suite.told[-1].answers == [SAID]
    assert suite.calls == [
        'put the red cube into the green bin',
        'put the blue cylinder into the green bin',
    ]


def test_its_client_hears_how_far_it_is(suite):
    suite.slow = True
    suite.send()
    suite.robot.until(lambda: any(told.step for told in suite.feedback), show=False)
    assert suite.feedback[-1].step == 'put the red cube into the green bin'
    assert (suite.feedback[-1].part, suite.feedback[-1].steps) == (1, 0)


def test_it_begins_by_looking_where_nothing_is_known(suite, robot):
    suite._memory.clear()
    _, result = suite.result(suite.send())
    assert result.success, result.message
    assert 'Do you see the red cube?' in suite.asked and 'Where is the red cube?' in suite.asked


def test_what_is_gone_is_forgotten(suite):
    suite._memory['cyan ball'] = 'cyan ball: on the table'
    assert suite.result(suite.send())[1].success
    assert 'cyan ball' not in suite._memory


def test_a_cancelled_mission_stops_the_arm(suite):
    suite.slow = True
    goal = suite.send()
    suite.robot.until(lambda: suite.goals, show=False)
    suite.robot.until(goal.cancel_goal_async().done, show=False)
    status, result = suite.result(goal)
    assert status == GoalStatus.STATUS_CANCELED and result.message == 'cancelled'
    suite.robot.until(lambda: not suite.goals, show=False)


def test_a_step_that_is_accepted_only_after_the_cancel_is_cancelled_too(suite):
    suite.slow = True
    goal, calls = suite.send(), []
    suite.robot.until(lambda: suite.node._running.calls._sent is not None, show=False)
    calls.append(suite.node._running.calls)
    suite.node.end_mission('cancelled in between')  # on the node's thread, as its timer would
    assert calls[0]._cancelling is not None
    assert suite.result(goal)[1].message == 'cancelled in between'
    suite.robot.until(lambda: not suite.goals and not suite._ended, show=False)
    suite.robot.spin(0.5)
    assert not suite.goals, 'the arm is told nothing any more'


def test_the_arm_stands_while_a_mission_begins(suite):
    told = []
    suite.robot.node.create_subscription(
        String, 'instruction', lambda message: told.append(message.data), 10
    )
    assert suite.result(suite.send())[1].success
    assert told[0] == '' and len(told) == 1, 'steps are goals of the action node'


def test_another_mission_takes_its_place(suite):
    suite.slow = True
    first = suite.send()
    suite.robot.until(lambda: suite.goals, show=False)
    suite.slow = False
    second = suite.send()
    assert 'another mission' in suite.result(first)[1].message
    assert suite.result(second)[1].success


def test_an_arm_that_is_not_armed_ends_it(suite):
    suite.armed = False
    status, result = suite.result(suite.send())
    assert status == GoalStatus.STATUS_ABORTED and result.error_code == ErrorCode.NOT_ARMED
    assert 'arm the arm' in result.message


def test_a_failed_step_is_tried_again_and_then_given_up(suite):
    suite._success = 0.0
    status, result = suite.result(suite.send())
    assert status == GoalStatus.STATUS_ABORTED
    assert result.message.startswith('give up: put the red cube') and result.steps > 1
    assert any(text.endswith(', not finished') for text in suite.memory())


@pytest.mark.parametrize(
    'goal', [dict(mission=' '), dict(mission='x' * 500), dict(step_time_limit=-1.0)]
)
def test_a_goal_that_makes_no_sense_is_refused(suite, goal):
    assert not suite.send(**goal).accepted


@pytest.mark.parametrize('service', ['memory/plan', 'memory/query', 'language/ask'])
def test_a_service_that_refuses_ends_it_with_what_it_said(suite, service):
    suite.refuses = service
    status, result = suite.result(suite.send())
    assert status == GoalStatus.STATUS_ABORTED
    assert result.message == f'{service}: not today'


def test_what_is_no_instruction_is_never_told_to_the_arm(suite):
    suite.says = lambda question: 'in the blue bin'
    status, result = suite.result(suite.send())
    assert status == GoalStatus.STATUS_ABORTED and not suite.calls
    assert result.message == "the planner answered 'in the blue bin', which is no instruction"


def test_a_node_that_is_deactivated_ends_it(suite):
    suite.slow = True
    goal = suite.send()
    suite.robot.until(lambda: suite.goals, show=False)
    suite.node.trigger_deactivate()
    assert 'no longer active' in suite.result(goal)[1].message
    assert not suite.send().accepted


def test_a_mission_goes_back_with_its_session_and_on_from_there(robot, tmp_path):
    suite = TableSuite(robot, LYING, TIDY)
    suite.up(Session, capsule_directory=str(tmp_path))
    suite.slow = True
    goal = suite.send()
    suite.robot.until(lambda: suite.goals, show=False)
    assert robot.call(CapsuleSnapshot, 'capsule/snapshot', name='here').success
    suite.robot.until(goal.cancel_goal_async().done, show=False)
    suite.result(goal)
    suite.robot.until(lambda: not suite.goals, show=False)
    suite.robot.until(lambda: not suite.told[-1].running, show=False)
    suite.slow = False
    suite.told.clear()
    back = robot.call(CapsuleRollback, 'capsule/rollback', name='here')
    assert back.success, back.message
    suite.robot.until(lambda: suite.told and not suite.told[-1].running, show=False)
    assert suite.told[-1].success and suite.told[-1].steps == 3
    assert suite.told[0].running and suite.told[0].mission == 'tidy up'


def test_a_rewound_step_does_not_tell_the_arm_what_was_told_before(robot, tmp_path):
    suite = TableSuite(robot, LYING, TIDY, success=0.0)
    suite.up(Session, capsule_directory=str(tmp_path))
    resumed = []
    session = suite.node.host.session(suite.node.robot)
    session.register(InstructionPart(lambda: 'from before', resumed.append))
    assert not suite.result(suite.send())[1].success
    assert not resumed
    (boundary,) = session.registry.entries()
    session.rollback(boundary.name)
    assert resumed == ['from before'], 'a rollback that somebody asks for does'


class Planner:
    """A stand-in for the memory part of a capsule."""

    name, depth, resumed = MemoryPart.name, 'planner', 0

    def freeze(self):
        return FrozenPart()

    def check_resumable(self, frozen):
        assert frozen.facts is None and not frozen.tensors

    def resume(self, frozen):
        self.resumed += 1


def test_a_rewound_step_takes_the_planner_along(robot, tmp_path):
    suite = TableSuite(robot, LYING, TIDY, success=0.0)
    suite.up(Session, capsule_directory=str(tmp_path))
    suite.node.host.session(suite.node.robot).register(planner := Planner())
    _, result = suite.result(suite.send())
    assert planner.resumed == result.steps > 1


def test_a_failed_step_rewinds_the_session_and_not_the_mission(robot, tmp_path):
    suite = TableSuite(robot, LYING, TIDY, success=0.0)
    suite.up(Session, capsule_directory=str(tmp_path))
    status, result = suite.result(suite.send())
    assert status == GoalStatus.STATUS_ABORTED and result.message.startswith('give up')
    listed = robot.call(CapsuleList, 'capsule/list')
    assert [capsule.name for capsule in listed.capsules] == [f'mission-boundary-{result.steps}']
