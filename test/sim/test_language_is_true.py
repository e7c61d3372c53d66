"""Descriptions of a moment, and answers about it, agree with the scene."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.demo.sim.language import (
    SCENE_QUESTIONS,
    ask_done,
    ask_held,
    ask_inside,
    narrate,
    say_subtask,
)
from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.scene import MOVABLE, draw_scene
from embodied_kv.demo.sim.tabletop import ObjectTruth, Truth
from embodied_kv.demo.sim.tasks import Task, task_scene


def drawn(seed: int, held: int = -1) -> Truth:
    config = task_scene('put', crowded=seed % 2 == 1)
    scene = draw_scene(config, np.random.default_rng(seed))
    things = tuple(
        ObjectTruth(
            t.name,
            t.shape,
            t.colour,
            np.array([*t.position, t.floor + t.size[2] / 2]),
            t.yaw,
            np.array(t.size),
        )
        for t in scene.things
    )
    return Truth(things, np.zeros(3), things[held].name if held >= 0 else '')


@given(st.integers(0, 10_000), st.sampled_from(sorted(SCENE_QUESTIONS)))
def test_answers_agree_with_the_scene(seed, kind):
    truth, rng = drawn(seed), np.random.default_rng(seed)
    found = SCENE_QUESTIONS[kind](truth, rng)
    if found is None:
        assert kind in ('colour', 'side')
        return
    question, answer = found
    by_name = {thing.name: thing for thing in truth.things}
    match kind:
        case 'held':
            assert answer == 'nothing'
        case 'count':
            assert int(answer) == sum(t.shape in MOVABLE for t in truth.things)
        case 'colour':
            shape = question.removeprefix('What colour is the ').removesuffix('?')
            assert [t.colour for t in truth.things if t.shape == shape] == [answer]
        case 'shape':
            colour = question.split()[4]
            assert [t.shape for t in truth.things if t.colour == colour] == [answer]
        case 'side':
            words = question.removesuffix('?').split()
            a, b = by_name[' '.join(words[2:4])], by_name[' '.join(words[-2:])]
            left = a.position[1] > b.position[1]
            assert answer == ('yes' if left == (words[4] == 'left') else 'no')
        case 'exists':
            name = question.removeprefix('Do you see the ').removesuffix('?')
            assert (name in by_name) == (answer == 'yes')
        case 'inside':
            place = by_name[' '.join(question.removesuffix('?').split()[-2:])]
            assert question.split()[2] == {'bin': 'in', 'plate': 'on'}[place.shape]
            inside = [t.name for t in truth.things if t is not place and beneath(t, place)]
            assert answer == (' and '.join(f'the {n}' for n in sorted(inside)) or 'nothing')
        case 'where':
            thing = by_name[question.removeprefix('Where is the ').removesuffix('?')]
            on = [p for p in truth.things if p is not thing and beneath(thing, p)]
            place = f'{"in" if on[0].shape == "bin" else "on"} the {on[0].name}' if on else ''
            assert answer == (place or 'on the table')


def beneath(thing: ObjectTruth, place: ObjectTruth) -> bool:
    apart = np.hypot(*(thing.position - place.position)[:2])
    return place.shape in ('bin', 'plate') and bool(apart < 0.06)


def test_what_lies_in_a_place_is_named_in_order_and_what_is_held_does_not_lie_there():
    things = tuple(
        ObjectTruth(name, name.split()[1], name.split()[0], np.array(at), 0.0, np.full(3, 0.04))
        for name, at in (
            ('cyan bin', (0.4, 0.0, 0.02)),
            ('red cube', (0.43, 0.0, 0.03)),
            ('blue cylinder', (0.37, 0.0, 0.03)),
        )
    )
    rng = np.random.default_rng(0)
    answers = [ask_inside(Truth(things, np.zeros(3), held), rng) for held in ('', 'red cube')]
    question = 'What is in the cyan bin?'
    assert answers[0] == (question, 'the blue cylinder and the red cube')
    assert answers[1] == (question, 'the blue cylinder')
    assert ask_inside(Truth(things[1:], np.zeros(3), ''), rng) is None
    empty = ask_inside(Truth(things[:1], np.zeros(3), ''), rng)
    assert empty == (question, 'nothing')


def test_a_thing_put_beside_another_is_said_to_be_next_to_it():
    task, truth = Task('next', 'red cube', place='blue bin'), drawn(2)
    assert say_subtask(Phase.CARRY, task, truth) == 'move beside the blue bin'
    assert say_subtask(Phase.PLACE, task, truth) == 'lower beside the blue bin'
    assert narrate(Phase.HOLD, task, truth) == 'the red cube is next to the blue bin'
    taken = Task('take', 'red cube', place='blue plate')
    assert narrate(Phase.LIFT, taken, truth).endswith('to take it off the blue plate')
    assert narrate(Phase.HOLD, taken, truth) == 'the red cube is on the table'


def test_what_is_held_is_named():
    truth = drawn(1, held=1)
    assert ask_held(truth, np.random.default_rng(0))[1] == f'the {truth.things[1].name}'


@pytest.mark.parametrize('phase', Phase)
def test_every_phase_has_words_for_every_family(phase):
    truth = drawn(2, held=1)
    for task in (
        Task('reach', 'red cube'),
        Task('pick', 'red cube'),
        Task('put', 'red cube', place='blue bin'),
        Task('push', 'red cube', side='left'),
        Task('take', 'red cube', place='blue bin'),
        Task('next', 'red cube', place='blue cylinder'),
    ):
        for words in (say_subtask(phase, task, truth), narrate(phase, task, truth)):
            assert words and '{' not in words


def test_done_is_when_the_expert_holds_still():
    task = Task('reach', 'red cube')
    assert ask_done(Phase.HOLD, task, drawn(0)) == ('Is it done?', 'yes')
    assert ask_done(Phase.ABOVE, task, drawn(0)) == ('Is it done?', 'no')
    assert ask_done(Phase.LOST, None, drawn(0)) is None
