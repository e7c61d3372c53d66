"""The demo cancels a mission that takes too long, even if it was not accepted until then."""

import pytest
from mission_suite import TableSuite

from embodied_kv.demo.mission_client import MissionClient
from embodied_kv.demo.sim.table_memory import TABLE
from training.planner.missions import Mission, Part, Which
from training.planner.simulated_table import SimulatedTable

LYING = SimulatedTable({'red cube': TABLE}, ('green bin',))
AWAY = Mission((Part('put', Which(names=('red cube',)), 'green bin'),))


@pytest.fixture
def suite(robot):
    """Return a suite whose arm never finishes a step."""
    suite = TableSuite(robot, LYING, AWAY)
    suite.up()
    suite.slow = True
    return suite


@pytest.mark.parametrize('accepted', [False, True])
def test_whenever_it_is_taken_back_it_ends(suite, accepted):
    client = MissionClient(suite.robot.node)
    suite.robot.until(client._client.server_is_ready, show=False)
    client.send('tidy up')
    if accepted:
        suite.robot.until(lambda: suite.goals, show=False)
    client.cancel()
    suite.robot.until(lambda: client.result is not None, show=False)
    assert client.result.message == 'the time limit passed' and not client.result.success
    suite.robot.until(lambda: not suite.goals, show=False)
