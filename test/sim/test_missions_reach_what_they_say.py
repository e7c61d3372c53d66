"""Following the rules achieves what a mission means, or ends it, whatever fails on the way."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.demo.sim.tasks import Task
from training.planner.mission_draws import draw_mission, draw_table
from training.planner.mission_oracle import next_step
from training.planner.mission_phrases import say_mission
from training.planner.mission_rollout import roll_out
from training.planner.missions import Mission, Part, Which, place_of
from training.planner.simulated_table import SimulatedTable

FIRST = SimulatedTable(
    where={
        'red cube': TABLE,
        'blue ball': TABLE,
        'blue cube': 'green bin',
        'cyan cube': 'purple plate',
    },
    places=('green bin', 'purple plate'),
)


def follow(mission, table, success=1.0, seed=0):
    return list(roll_out(mission, table, np.random.default_rng(seed), success))


def said(part, table=FIRST, **how):
    return [turn.said for turn in follow(Mission((part,)), table, **how)]


def reached(part, before, after):
    """Return whether the goal of a part is met, judged only by the states before and after it."""
    now, then = after.where, before.where
    match part.kind:
        case 'put' | 'take':
            goal = TABLE if part.kind == 'take' else place_of(part.place, before)
            moved = {name for name in then if now[name] != then[name]}
            meant = part.which.of(before)
            return all(now[name] == goal for name in meant) and moved <= {*meant, before.held}
        case 'next':
            place = part.place if part.place in now else place_of(part.place, before)
            return after.next_to(part.which.names[0], place)
        case 'push':
            return after.beside[part.which.names[0]] == f'on the {part.side}'
        case 'back':
            (name,) = part.which.names
            return now[name] == before.records[before.last[name]].origin
        case 'undo':
            oldest = {}
            for number in before.moves[: part.steps]:
                oldest[before.records[number].task.target] = before.records[number].origin
            return all(now[name] == place for name, place in oldest.items())
    return now == then


@given(st.integers(0, 10**6))
def test_every_part_reaches_its_goal_where_all_steps_succeed(seed):
    rng = np.random.default_rng(seed)
    table = draw_table(rng, int(rng.integers(5, 41)))
    mission = draw_mission(rng, table, parts=1)
    turns = follow(mission, table)
    ends = turns[-1].right.kind
    assert ends in ('over', 'impossible')
    if ends == 'over':
        assert reached(mission.parts[0], table, turns[-1].table)


@given(st.integers(0, 10**6))
def test_every_mission_ends_whatever_fails(seed):
    rng = np.random.default_rng(seed)
    table = draw_table(rng, 12)
    mission = draw_mission(rng, table)
    turns = follow(mission, table, success=0.6, seed=seed)
    assert turns[-1].right.kind in ('over', 'impossible', 'give up')
    for turn in turns:
        if turn.right.kind == 'task':
            assert not turn.table.hindrance(turn.right.task)


def test_things_come_by_colour_and_then_by_shape():
    part = Part('put', Which(('cyan cube', 'red cube')), 'bin')
    assert said(part) == [
        'put the red cube into the green bin',
        'impossible: the green bin is full',
    ]
    assert said(Part('take', Which())) == [
        'take the blue cube out of the green bin',
        'take the cyan cube off the purple plate',
        'done',
        'over',
    ]


@pytest.mark.parametrize(
    ('which', 'things'),
    [
        (Which(colour='blue'), ['blue cube', 'blue ball']),
        (Which(shape='cube'), ['red cube', 'blue cube', 'cyan cube']),
        (Which(shape='cube', other=True), ['blue ball']),
        (Which(colour='blue', other=True), ['red cube', 'cyan cube']),
        (Which(but=('red cube',)), ['blue cube', 'blue ball', 'cyan cube']),
        (Which(place='bin'), ['blue cube']),
        (Which(place='table', but=('red cube',)), ['blue ball']),
        (Which(('red cube',), place='bin'), []),
    ],
)
def test_words_for_things_mean_these(which, things):
    assert which.of(FIRST) == things


@pytest.mark.parametrize(
    ('part', 'reason'),
    [
        (Part('put', Which(('red ball',)), 'bin'), 'I know no red ball'),
        (Part('put', Which(colour='cyan'), 'red bin'), 'I know no red bin'),
        (Part('put', Which(colour='orange'), 'bin'), 'I know nothing orange'),
        (Part('put', Which(shape='cylinder'), 'bin'), 'I know no cylinder'),
        (Part('put', Which(('green bin',)), 'plate'), 'I cannot move the green bin'),
        (Part('put', Which(('red cube',)), 'bin', stay=('red cube',)), 'the red cube is to stay'),
        (Part('next', Which(('red cube',)), 'blue cube'), 'the blue cube is in the green bin'),
        (Part('back', Which(('red cube',))), 'I do not know where the red cube was'),
        (Part('undo', steps=1), 'I moved nothing'),
    ],
)
def test_what_cannot_be_is_said_with_its_reason(part, reason):
    assert said(part) == [f'impossible: {reason}']


def test_a_word_for_two_places_is_not_enough():
    table = SimulatedTable({'red cube': TABLE}, ('green bin', 'blue bin'))
    (answer,) = said(Part('put', Which(), 'bin'), table)
    assert answer == 'impossible: I know more than one bin'
    assert said(Part('put', Which(), 'blue bin'), table)[0] == 'put the red cube into the blue bin'


@pytest.mark.parametrize(
    ('part', 'steps'),
    [
        (
            Part('put', Which(('red cube',)), 'bin'),
            ['put the red cube into the green bin'] * 2
            + ['pick up the red cube', 'put the red cube into the green bin'],
        ),
        (
            Part('take', Which(('blue cube',))),
            ['take the blue cube out of the green bin'] * 2
            + ['move the blue cube next to the green bin'],
        ),
        (
            Part('push', Which(('red cube',)), side='left'),
            ['push the red cube to the left'] * 2,
        ),
    ],
)
def test_a_step_in_vain_is_tried_again_then_another_way_then_given_up(part, steps):
    table, tried = FIRST, []
    turn = follow(Mission((part,)), table)[0]
    progress = turn.progress
    while (step := next_step(Mission((part,)), table, progress)).kind == 'task':
        tried.append(step.text)
        progress = progress.after(step, False, table)
    assert tried == steps
    assert step.text == f'give up: {steps[0]}'


def test_after_a_success_the_next_thing_has_all_its_tries():
    part = Part('put', Which(('red cube', 'blue ball')), 'plate')
    progress = follow(Mission((part,)), FIRST)[0].progress
    first = next_step(Mission((part,)), FIRST, progress)
    progress = progress.after(first, False, FIRST)
    after = FIRST.do(first.task)
    progress = progress.after(first, True, after)
    assert progress.tail == () and progress.count == 1


def test_what_fell_out_of_the_place_that_named_it_is_still_meant():
    part = Part('put', Which(place='plate'), 'bin')
    mission = Mission((part,))
    progress = follow(mission, FIRST)[0].progress
    step = next_step(mission, FIRST, progress)
    fallen = FIRST.fail(step.task, TABLE)
    again = next_step(mission, fallen, progress.after(step, False, fallen))
    assert again.text == step.text == 'put the cyan cube into the green bin'


def test_undoing_takes_moves_from_the_newest_on_and_twice_restores():
    table = FIRST.do(Task('put', 'red cube', 'green bin')).do(
        Task('take', 'cyan cube', 'purple plate')
    )
    undo = Mission((Part('undo', steps=2),))
    turns = follow(undo, table)
    assert [turn.said for turn in turns] == [
        'put the cyan cube on the purple plate',
        'take the red cube out of the green bin',
        'done',
        'over',
    ]
    assert turns[-1].table.where == FIRST.where
    assert follow(undo, turns[-1].table)[-1].table.where == table.where


def test_where_a_thing_was_counts_the_steps_of_the_mission_itself():
    mission = Mission(
        (Part('put', Which(('blue ball',)), 'plate'), Part('back', Which(('blue ball',))))
    )
    assert [turn.said for turn in follow(mission, FIRST)] == [
        'put the blue ball on the purple plate',
        'done',
        'take the blue ball off the purple plate',
        'done',
        'over',
    ]


def test_a_mission_speaks_of_how_things_are_when_it_is_asked():
    parts = Part('put', Which(('blue ball',)), 'plate'), Part('say', place='plate', about='inside')
    assert 'say: the purple plate holds the blue ball and the cyan cube' in [
        turn.said for turn in follow(Mission(parts), FIRST)
    ]
    moved = Part('say', about='moved')
    assert 'say: I moved the blue ball last' in [
        turn.said for turn in follow(Mission((parts[0], moved)), FIRST)
    ]


@given(st.integers(0, 10**6))
def test_parts_in_words_name_all_that_they_are_about(seed):
    rng = np.random.default_rng(seed)
    mission = draw_mission(rng, draw_table(rng, 8))
    words = say_mission(mission, rng)
    assert len(words) == len(mission.parts)
    for part, text in zip(mission.parts, words, strict=True):
        named = (*part.which.names, *part.which.but, *part.stay, part.which.word, part.side)
        place = '' if part.kind == 'take' and part.place == TABLE else part.place
        once = [name for name in (*named, place) if name]
        if part.stay and set(part.stay) <= set(part.which.names):
            once = [name for name in once if name not in part.stay]
        assert all(re.search(rf'\b{name}', text) for name in once), (part, text)
