"""A scene query removes all segments about an absent object from memory, whatever their ids."""

import pytest
from mission_suite import TableSuite

from embodied_kv.demo.sim.table_memory import TABLE
from training.planner.missions import Mission, Part, Which
from training.planner.simulated_table import SimulatedTable

LYING = SimulatedTable({'red cube': TABLE}, ('green bin',))
AWAY = Mission((Part('put', Which(names=('red cube',)), 'green bin'),))


@pytest.fixture
def suite(robot):
    suite = TableSuite(robot, LYING, AWAY)
    suite.up()
    return suite


def test_segment_of_another_node_is_removed_by_its_id(suite):
    suite._memory['note 1'] = 'cyan ball: in the green bin'
    suite._memory['note 2'] = 'blue bin: holds the cyan ball'
    suite._memory['note 3'] = 'the cyan ball is a present'
    assert suite.result(suite.send())[1].success
    assert suite._memory.keys().isdisjoint({'note 1', 'note 2'})
    assert suite._memory['note 3'], 'it says not where anything is'


def test_all_segments_about_a_removed_object_are_removed(suite):
    suite._memory |= dict.fromkeys(('cyan ball', 'note 1'), 'cyan ball: on the table')
    assert suite.result(suite.send())[1].success
    assert suite._memory.keys().isdisjoint({'cyan ball', 'note 1'})


def test_segment_removed_by_another_node_does_not_end_the_mission(suite):
    suite._memory['cyan ball'] = 'cyan ball: on the table'
    remove, asked = suite._remove, []

    def too_late(request, response):
        asked.append(request.id)
        suite._memory.pop(request.id)
        remove(request, response)

    suite._remove = too_late
    assert suite.result(suite.send())[1].success
    assert asked == ['cyan ball']
