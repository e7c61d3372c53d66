"""A restore that replaces a running mission ends that mission immediately.

Otherwise the mission would store checkpoints and memory that describe another moment.
"""

import pytest
from mission_suite import TableSuite

from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.nodes.session import Session
from embodied_kv.planning.mission import MissionInterruptedError
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
