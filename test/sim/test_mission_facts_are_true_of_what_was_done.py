"""A task changes the table as it states and leaves a record; an impossible task is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.demo.sim.table_memory import FLOOR, TABLE
from embodied_kv.demo.sim.tasks import Task
from training.planner.household import TASKS
from training.planner.mission_draws import draw_table
from training.planner.simulated_table import ROOM, SimulatedTable

STATE = SimulatedTable(
    where={'red cube': TABLE, 'blue ball': 'green bin', 'cyan cube': FLOOR},
    places=('green bin', 'purple plate'),
)


def texts(table):
    return {fact.id: fact.text for fact in table.facts()}


def test_the_facts_of_a_table_with_a_history():
    after = (
        STATE.do(Task('put', 'red cube', 'green bin'))
        .fail(Task('take', 'blue ball', 'green bin'))
        .do(Task('put', 'blue ball', 'purple plate'))
    )
    assert texts(after) == {
        'red cube': 'red cube: in the green bin',
        'blue ball': 'blue ball: on the purple plate',
        'cyan cube': 'cyan cube: on the floor',
        'green bin': 'green bin: holds the red cube',
        'purple plate': 'purple plate: holds the blue ball',
        'robot': 'robot: holds nothing',
        'task 1': 'task 1: put the red cube into the green bin, from the table',
        'task 2': 'task 2: take the blue ball out of the green bin, not finished',
        'task 3': 'task 3: put the blue ball on the purple plate, from the green bin',
        'last red cube': 'last move of the red cube: task 1',
        'last blue ball': 'last move of the blue ball: task 3',
    }
    assert after.moves == (3, 1)


def test_a_thing_that_was_picked_up_came_from_where_it_lay():
    held = STATE.do(Task('pick', 'blue ball'))
    assert texts(held)['blue ball'] == 'blue ball: held by the robot'
    assert texts(held)['robot'] == 'robot: holds the blue ball'
    assert held.moves == ()
    assert (held.origin('blue ball'), held.origin('red cube')) == ('green bin', TABLE)
    assert held.origin('grey cube', 'nowhere') == 'nowhere'
    put = held.do(Task('put', 'blue ball', 'purple plate'))
    assert put.records[2].origin == 'green bin'


def test_a_thing_that_is_in_the_way_of_the_hand_is_put_down():
    after = STATE.do(Task('pick', 'blue ball')).do(Task('put', 'red cube', 'green bin'))
    assert after.where['blue ball'] == TABLE and after.held is None


def test_a_step_in_vain_may_leave_its_thing_elsewhere_and_moves_nothing_that_counts():
    task = Task('take', 'blue ball', 'green bin')
    assert STATE.fail(task).where == STATE.where
    held = STATE.fail(task, 'robot')
    assert held.held == 'blue ball' and held.moves == ()
    assert held.do(Task('put', 'blue ball', 'purple plate')).records[2].origin == 'green bin'


def test_who_stood_beside_a_thing_that_moves_stands_there_no_more():
    beside = STATE.do(Task('next', 'red cube', 'green bin'))
    assert texts(beside)['red cube'] == 'red cube: next to the green bin'
    two = beside.do(Task('take', 'blue ball', 'green bin')).do(
        Task('next', 'blue ball', 'red cube')
    )
    assert two.next_to('red cube', 'blue ball')
    gone = two.do(Task('push', 'red cube', side='left'))
    assert texts(gone)['red cube'] == 'red cube: on the left'
    assert texts(gone)['blue ball'] == 'blue ball: on the table'


@pytest.mark.parametrize(
    ('task', 'reason'),
    [
        (Task('put', 'blue ball', 'green bin'), 'is there'),
        (Task('put', 'cyan cube', 'green bin'), 'out of reach'),
        (Task('take', 'red cube', 'green bin'), 'is not there'),
        (Task('next', 'red cube', 'blue ball'), 'is not on the table'),
        (Task('push', 'blue ball', side='left'), 'cannot be pushed'),
    ],
)
def test_what_makes_no_sense_is_refused(task, reason):
    with pytest.raises(ValueError, match=reason):
        STATE.do(task)


def test_a_full_receptacle_takes_no_more():
    things = dict.fromkeys(('red cube', 'red ball'), 'green bin') | {'blue cube': TABLE}
    with pytest.raises(ValueError, match='green bin is full'):
        SimulatedTable(things, ('green bin',)).do(Task('put', 'blue cube', 'green bin'))


def test_numbers_rise_and_then_the_oldest_record_goes():
    table, task = STATE, Task('push', 'red cube', side='left')
    for _ in range(TASKS + 2):
        table = table.fail(task)
    assert list(table.records) == [*range(3, TASKS + 1), 1, 2]


@given(st.integers(0, 10**6), st.integers(5, 40))
def test_a_drawn_table_agrees_with_its_records_and_with_itself(seed, records):
    table = draw_table(np.random.default_rng(seed), records)
    assert len(table.records) == records
    assert set(table.where.values()) <= {*table.places, TABLE, FLOOR, 'robot'}
    assert all(len(table.inside(place)) <= ROOM for place in table.places)
    assert not {name.split()[0] for name in table.where} & {p.split()[0] for p in table.places}
    for number in table.moves:
        task = table.records[number].task
        assert task.target in table.where and task.phrase(0)
        assert (task.family == 'take') <= (table.records[number].origin in table.places)
    for name in table.beside:
        assert table.where[name] == TABLE
