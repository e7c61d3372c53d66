"""A restore that replaces a running mission ends that mission immediately.

Otherwise the mission would store checkpoints and memory that describe another moment.
"""

import pytest
from mission_suite import TableSuite

from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.msg import ControlState
from embodied_kv.nodes.session import Session
from embodied_kv.planning.mission import MissionInterruptedError, MissionState
from training.planner.missions import Mission, Part, Which
from training.planner.simulated_table import SimulatedTable

LYING = SimulatedTable({'red cube': TABLE}, ('green bin',))
AWAY = Mission((Part('put', Which(names=('red cube',)), 'green bin'),))


@pytest.fixture
def suite(robot, tmp_path):
    suite = TableSuite(robot, LYING, AWAY)
    suite.up(Session, capsule_directory=str(tmp_path))
    return suite


def test_mission_ends_before_its_node_is_notified(suite):
    session = suite.node.host.session(suite.node.robot)
    session.snapshot('before')  # no mission is running
    over = []

    def roll_back(_):  # on the node's thread, which is blocked in the meantime
        running = suite.node._running
        session.rollback('before')
        running.thread.join(100.0)
        over.append(running)

    suite.interrupt = roll_back
    _, result = suite.result(suite.send())
    assert result.message == 'a capsule takes its place'
    (running,) = over
    assert not running.thread.is_alive() and not suite.goals
    assert suite.calls == [], 'the arm was told nothing'
    assert [record.name for record in session.registry.entries()] == ['before']


def test_ended_mission_sends_no_request_and_restores_nothing(suite):
    suite.mute = True
    goal = suite.send()
    suite.robot.until(lambda: suite.asked, show=False)
    mission = suite.node
    running, crew = mission._running, mission._running.run._robot
    mission._resume_mission(None)
    for what in (crew.rewind, crew.moves, lambda: crew.remember('pick up the red cube', True)):
        with pytest.raises(MissionInterruptedError, match='a capsule takes its place'):
            what()
    assert suite.result(goal)[1].message == 'a capsule takes its place'
    assert not running.thread.is_alive()


def test_inactive_node_starts_no_restored_mission_later(suite):
    session, mission = suite.node.host.session(suite.node.robot), suite.node
    taken = []

    def snapshot(_):
        if not taken:
            taken.append(session.snapshot('during')[0])

    suite.interrupt = snapshot
    suite.result(suite.send())
    assert taken and 'mission' in taken[0].facts
    mission.trigger_deactivate()
    resumed = session.rollback('during')
    assert any('no active node resumes' in note for note in resumed.notes)
    mission.trigger_activate()
    suite.robot.spin(0.5)
    assert mission._running is None and mission._coming == ()


@pytest.mark.parametrize('change', ['goal', 'stop'])
def test_restored_mission_does_not_start_after_a_goal_or_a_stop(suite, change):
    mission = suite.node
    mission._look = lambda: None  # the node has not started it yet
    mission._resume_mission(MissionState('tidy up', step_time_limit=9.0))
    assert mission._coming
    if change == 'goal':
        suite.send()
    else:
        suite.robot.until(lambda: mission._arm is not None, show=False)
        suite.say_arm(ControlState.STOPPED, 'a test')
        suite.robot.until(lambda: mission._arm == ControlState.STOPPED, show=False)
    assert mission._coming == ()
