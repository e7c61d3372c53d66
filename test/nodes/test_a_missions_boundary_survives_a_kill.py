"""The checkpoint before a mission step is stored on disk, and its restore repeats the step."""

import pytest
from mission_suite import TableSuite
from rclpy.parameter import Parameter

from embodied_kv.capsule.disk import Disk
from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.nodes.session import Session
from embodied_kv.srv import CapsuleList, CapsuleRollback, CapsuleSnapshot
from training.planner.missions import Mission, Part, Which
from training.planner.simulated_table import SimulatedTable

LYING = SimulatedTable({'red cube': TABLE}, ('green bin',))
AWAY = Mission((Part('put', Which(names=('red cube',)), 'green bin'),))
PUT_RED = 'put the red cube into the green bin'
BOUNDARY = 'mission-boundary-1'


@pytest.fixture
def begun(robot, tmp_path):
    """Return a function that starts a mission, up to its first step, which never ends."""

    def begin(**parameters):
        suite = TableSuite(
            robot, LYING, Mission((Part('put', Which(('red cube',)), 'green bin'),))
        )
        suite.up(Session, capsule_directory=str(tmp_path), **parameters)
        suite.slow = True
        suite.goal = suite.send(step_time_limit=7.5)
        robot.until(lambda: suite.goals, show=False)
        return suite

    return begin


def listed(robot):
    return {c.name: c.saved for c in robot.call(CapsuleList, 'capsule/list').capsules}


def test_while_a_step_is_in_force_the_disk_has_it(robot, tmp_path, begun):
    begun()
    (folder,) = {path.parent for path in tmp_path.rglob(f'{BOUNDARY}*')}
    disk = Disk(folder)
    facts = disk.load(BOUNDARY, disk.entry(BOUNDARY).fingerprint).facts
    assert facts['mission']['mission']['acting'] == PUT_RED
    assert facts['mission']['mission']['words'] == 'tidy up'


def test_rollback_to_the_checkpoint_sends_the_step_again(robot, begun):
    suite = begun()
    told = suite.goals[0][0]
    back = robot.call(CapsuleRollback, 'capsule/rollback', name=BOUNDARY)
    assert back.success, back.message
    robot.until(lambda: suite.goals and suite.goals[0][0] is not told, show=False)
    told = suite.goals[-1][0].request
    assert (told.instruction, told.time_limit) == (PUT_RED, 7.5), 'as the goal had it'


def test_it_is_not_where_a_rollback_without_a_name_goes(robot, begun):
    begun()
    back = robot.call(CapsuleRollback, 'capsule/rollback')
    assert not back.success and 'take a snapshot first' in back.message


def test_name_prefix_of_mission_capsules_is_reserved(robot, begun):
    begun()
    taken = robot.call(CapsuleSnapshot, 'capsule/snapshot', name='mission-boundary-9')
    assert not taken.success and 'choose another name' in taken.message
    assert listed(robot) == {BOUNDARY: True}


def test_where_the_session_has_no_disk_the_host_keeps_it(robot, begun):
    begun(disk_mib=0)
    assert listed(robot) == {BOUNDARY: False}


def test_checkpoint_is_stored_in_the_tier_of_the_parameter(robot, begun):
    suite = begun(step_checkpoint_tier='host')
    assert listed(robot) == {BOUNDARY: False}
    (told,) = suite.node.set_parameters([Parameter('step_checkpoint_tier', value='attic')])
    assert not told.successful and 'attic' in told.reason
