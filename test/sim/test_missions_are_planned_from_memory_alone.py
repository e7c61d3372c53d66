"""The table read from memory's sentences equals the table that they were written from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.demo.sim.table_memory import parse_task, read_table
from embodied_kv.demo.sim.tasks import PHRASES, Task
from training.planner.mission_draws import draw_mission, draw_table
from training.planner.mission_oracle import next_step
from training.planner.mission_rollout import roll_out
from training.planner.simulated_table import SimulatedTable


@pytest.mark.parametrize('family', PHRASES)
@pytest.mark.parametrize('place', ['blue bin', 'blue plate'])
def test_an_instruction_is_read_however_it_is_said(family, place):
    task = {
        'push': Task(family, 'red cube', side='left'),
        'reach': Task(family, 'red cube'),
        'pick': Task(family, 'red cube'),
    }.get(family, Task(family, 'red cube', place))
    for number in range(10):
        assert parse_task(task.phrase(number)) == task
    assert parse_task(f'please {task.phrase(0)}') is None


@given(st.integers(0, 10**6))
def test_a_table_that_is_read_back_writes_the_same_memory(seed):
    table = draw_table(np.random.default_rng(seed), 20)
    facts = table.facts()
    assert SimulatedTable.of(read_table(fact.text for fact in facts)).facts() == facts


@given(st.integers(0, 10**6))
def test_the_rules_say_the_same_from_memory_as_from_the_table(seed):
    rng = np.random.default_rng(seed)
    table = draw_table(rng, 8)
    mission = draw_mission(rng, table)
    for turn in roll_out(mission, table, rng, success=0.7):
        told = read_table(fact.text for fact in turn.table.facts())
        assert next_step(mission, told, turn.progress) == turn.right


@given(st.integers(0, 10**6))
def test_what_has_vanished_is_no_error_but_a_reason(seed):
    rng = np.random.default_rng(seed)
    table = draw_table(rng, 8)
    mission = draw_mission(rng, table)
    gone = [name for name in (*table.where, *table.places) if rng.random() < 0.4]
    for turn in roll_out(mission, table, rng, success=0.7):
        facts = [fact.text for fact in turn.table.facts() if fact.id not in gone]
        step = next_step(mission, read_table(facts), turn.progress)
        if step.task:
            assert step.task.target not in gone
            assert step.task.family != 'put' or step.task.place not in gone
        assert step.kind != 'impossible' or step.words


def test_a_later_sentence_counts_and_other_sentences_are_passed_over():
    table = read_table(
        [
            'red cube: next to the blue bin',
            'note: the lamp is broken',
            'blue bin: holds nothing',
            'red cube: in the blue bin',
        ]
    )
    assert table.where == {'red cube': 'blue bin'}
    assert table.places == ('blue bin',) and not table.beside
