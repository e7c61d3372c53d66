"""An update changes exactly the facts that it must; an impossible update is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.memory.household_traces import draw_trace
from training.planner.household import TASKS, Household, draw_household, upserts

STATE = Household(
    where={
        'red cube': 'blue bowl',
        'green ball': 'robot',
        'blue bowl': 'red bin',
        'red bin': 'left table',
        'cyan box': 'front table',
    },
    open=frozenset({'red bin'}),
    tasks={7: ('red cube', 'blue bowl'), 9: ('green ball', 'cyan box')},
    last={'blue bowl': 7},
)
FREE = Household({**STATE.where, 'green ball': 'right table'}, STATE.open, STATE.tasks, STATE.last)


def changes(before, after):
    return {fact.id: fact.text for fact in upserts(before, after)}


def test_the_facts_of_a_state():
    assert {fact.id: (fact.kind, fact.text) for fact in STATE.facts()} == {
        'red cube': ('object', 'red cube: in the blue bowl'),
        'green ball': ('object', 'green ball: held by the robot'),
        'blue bowl': ('object', 'blue bowl: in the red bin'),
        'red bin': ('place', 'red bin: open, on the left table'),
        'cyan box': ('place', 'cyan box: closed, on the front table'),
        'robot': ('agent', 'robot: holds the green ball'),
        'task 7': ('task', 'task 7: put the red cube into the blue bowl'),
        'task 9': ('task', 'task 9: put the green ball into the cyan box'),
        'last blue bowl': ('note', 'last into the blue bowl: task 7'),
    }


def test_a_pick_changes_the_object_and_the_robot():
    assert changes(FREE, FREE.pick('red cube')) == {
        'red cube': 'red cube: held by the robot',
        'robot': 'robot: holds the red cube',
    }


def test_a_put_on_a_table_changes_the_object_and_the_robot():
    assert changes(STATE, STATE.put('left table')) == {
        'green ball': 'green ball: on the left table',
        'robot': 'robot: holds nothing',
    }


def test_a_put_into_a_receptacle_changes_its_note_and_makes_a_record():
    assert changes(STATE, STATE.put('blue bowl')) == {
        'green ball': 'green ball: in the blue bowl',
        'robot': 'robot: holds nothing',
        'task 1': 'task 1: put the green ball into the blue bowl',
        'last blue bowl': 'last into the blue bowl: task 1',
    }


def test_a_put_that_was_done_before_keeps_its_record():
    after = STATE.open_lid('cyan box')
    assert changes(after, after.put('cyan box')) == {
        'green ball': 'green ball: in the cyan box',
        'robot': 'robot: holds nothing',
        'last cyan box': 'last into the cyan box: task 9',
    }


def test_a_lid_changes_its_bin():
    opened, closed = STATE.open_lid('cyan box'), STATE.close_lid('red bin')
    assert changes(STATE, opened) == {'cyan box': 'cyan box: open, on the front table'}
    assert changes(STATE, closed) == {'red bin': 'red bin: closed, on the left table'}


def test_a_move_changes_what_is_moved_and_not_what_lies_in_it():
    assert changes(STATE, STATE.move('red bin', 'back table')) == {
        'red bin': 'red bin: open, on the back table'
    }
    assert changes(STATE, STATE.move('blue bowl', 'back table')) == {
        'blue bowl': 'blue bowl: on the back table'
    }


@pytest.mark.parametrize(
    ('update', 'why'),
    [
        (lambda: STATE.pick('red cube'), 'the robot holds the green ball'),
        (lambda: FREE.pick('blue bowl'), "no 'blue bowl' for this"),
        (lambda: FREE.close_lid('red bin').pick('red cube'), 'the red bin is closed'),
        (lambda: FREE.put('left table'), 'the robot holds nothing to put onto the left table'),
        (lambda: STATE.put('cyan box'), 'the cyan box is closed'),
        (lambda: STATE.put('garden'), "no 'garden' for this"),
        (lambda: STATE.open_lid('red bin'), 'the red bin is open'),
        (lambda: STATE.close_lid('cyan box'), "no 'cyan box' for this"),
        (lambda: STATE.move('red bin', 'cyan box'), "no 'cyan box' for this"),
        (lambda: STATE.move('red bin', 'left table'), 'the red bin is on the left table'),
        (lambda: STATE.move('blue bowl', 'cyan box'), 'the cyan box is closed'),
        (lambda: STATE.close_lid('red bin').move('blue bowl', 'left table'), 'red bin is closed'),
        (lambda: draw_household(np.random.default_rng(0), 81), 'segments must be from 8'),
    ],
)
def test_what_cannot_be_done_is_refused(update, why):
    with pytest.raises(ValueError, match=why):
        update()


@given(st.integers(0, 10_000), st.integers(8, 80))
def test_memory_kept_by_upserts_is_the_memory_of_the_state(seed, segments):
    rng = np.random.default_rng(seed)
    household = draw_household(rng, segments)
    memory = {fact.id: fact for fact in household.facts()}
    assert len(memory) == len(household.facts()) == segments
    for update in draw_trace(rng, household, 30):
        assert update.changed and all(memory.get(fact.id) != fact for fact in update.changed)
        memory |= {fact.id: fact for fact in update.changed}
        assert memory == {fact.id: fact for fact in update.household.facts()}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_records_that_are_somebodys_last_are_kept(seed):
    rng = np.random.default_rng(seed)
    household = draw_household(rng, 80)
    for update in draw_trace(rng, household, 200):
        tasks, last = update.household.tasks, update.household.last
        assert len(tasks) <= TASKS
        assert all(tasks[number][1] == place for place, number in last.items())
