"""Tasks that refer to the past have a goal, a judge, conditions and sentences of their own."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.demo.sim import language
from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.scene import SIZES
from embodied_kv.demo.sim.table_memory import parse_task
from embodied_kv.demo.sim.tabletop import ObjectTruth, Truth
from embodied_kv.demo.sim.tasks import (
    EVERY_FAMILY,
    FAMILIES,
    MEMORY_FAMILIES,
    MEMORY_PHRASES,
    SECONDS,
    STEADY,
    Judge,
    Task,
    draw_task,
    hindrance,
)


def thing(name, x, y, z=None):
    colour, shape = name.split()
    size = np.array(SIZES[shape])
    z = size[2] / 2 if z is None else z
    return ObjectTruth(name, shape, colour, np.array([x, y, z]), 0.0, size)


BIN, CUBE, OTHER = (
    thing('cyan bin', 0.45, 0.15),
    thing('red cube', 0.3, 0.0),
    thing('blue cylinder', 0.35, -0.15),
)
AWAY = (0.2, 0.2, 0.3)
RETURN = Task('return', 'red cube', spot=(0.45, -0.05))
HIDDEN = Task('hidden', 'red cube', spot=(0.3, 0.0))
COVERS = np.array([(0.35, -0.15), (0.3, 0.0)])


def truth(*things, grip=AWAY, held='', covers=COVERS[:0]):
    return Truth(things or (BIN, CUBE, OTHER), np.array(grip, float), held, covers)


def judged(task, start, *moments):
    judge = Judge(task, start)
    for moment in moments:
        judge.see(moment)
    return judge.done, judge.wrong


def everything(points):
    return np.ones(len(points), bool)


def test_a_returned_thing_rests_within_four_centimetres_of_its_earlier_position():
    def put(x, y, z=None, held=''):
        return judged(RETURN, truth(), truth(BIN, thing('red cube', x, y, z), OTHER, held=held))

    assert put(0.45, -0.015) == (True, False)
    assert put(0.45, -0.005) == (False, False)
    assert put(0.45, -0.05, held='red cube') == (False, False)
    assert put(0.45, -0.05, z=0.1) == (False, False)


def test_a_thing_that_is_near_its_earlier_position_is_not_returned():
    near = truth(BIN, thing('red cube', 0.45, 0.02), OTHER)
    assert judged(RETURN, near, truth(BIN, thing('red cube', 0.45, -0.05), OTHER)) == (False,) * 2


def test_a_thing_is_returned_into_the_receptacle_that_it_was_in():
    task = replace(RETURN, spot=(0.45, 0.17))
    inside = truth(BIN, thing('red cube', 0.44, 0.17, 0.03), OTHER)
    assert judged(task, truth(), inside) == (True, False)
    on_the_wall = truth(BIN, thing('red cube', 0.44, 0.17, 0.06), OTHER)
    assert judged(task, truth(), on_the_wall) == (False, False)


def test_moving_another_thing_by_four_centimetres_is_wrong():
    moved, lifted = thing('blue cylinder', 0.35, -0.2), thing('blue cylinder', 0.35, -0.15, 0.08)
    assert judged(RETURN, truth(), truth(BIN, CUBE, moved)) == (False, True)
    assert judged(RETURN, truth(), truth(BIN, CUBE, lifted)) == (False, True)
    assert judged(RETURN, truth(), truth(BIN, CUBE, thing('blue cylinder', 0.35, -0.18))) == (
        False,
        False,
    )
    held = truth(BIN, CUBE, lifted, held='blue cylinder')
    assert judged(RETURN, held, truth()) == (False, False)  # put down first


def test_the_cover_over_the_thing_is_reached_and_another_is_wrong():
    def reached(x, y, periods=STEADY):
        start = truth(covers=COVERS)
        return judged(HIDDEN, start, *[replace(start, grip=np.array((x, y, 0.13)))] * periods)

    assert reached(0.31, 0.01) == (True, False)
    assert reached(0.31, 0.01, STEADY - 1) == (False, False)
    assert reached(0.35, -0.15) == (False, True)
    assert reached(0.45, 0.15) == (False, False)  # no cover


def test_the_thing_of_a_sequence_is_reached_and_another_is_wrong():
    task = Task('sequence', 'red cube')
    assert judged(task, truth(), *[truth(grip=(0.3, 0.0, 0.13))] * STEADY) == (True, False)
    assert judged(task, truth(), *[truth(grip=(0.35, -0.15, 0.13))] * STEADY) == (False, True)


def test_a_return_needs_a_free_earlier_position_in_reach():
    cannot = 'the red cube cannot be placed where it was'
    assert hindrance(RETURN, truth(), everything) == ''
    occupied = truth(BIN, CUBE, thing('blue cylinder', 0.45, -0.08))
    assert hindrance(RETURN, occupied, everything) == cannot
    assert hindrance(replace(RETURN, spot=(0.55, 0.3)), truth(), everything) == cannot
    into = replace(RETURN, spot=(0.45, 0.17))
    assert hindrance(into, truth(), everything) == ''
    full = truth(BIN, CUBE, thing('blue cylinder', 0.45, 0.14, 0.04))
    assert hindrance(into, full, everything) == cannot
    assert hindrance(HIDDEN, truth(covers=COVERS), everything) == ''


def test_families_that_need_a_memory_are_not_drawn():
    rng = np.random.default_rng(0)
    drawn = {draw_task(truth().things, rng).family for _ in range(100)}
    assert not drawn & {*MEMORY_FAMILIES} and not {*FAMILIES} & {*MEMORY_FAMILIES}
    assert {*SECONDS} == {*EVERY_FAMILY}


@pytest.mark.parametrize('task', [RETURN, HIDDEN, Task('sequence', 'red cube')])
def test_every_phrase_names_what_it_may_and_is_of_no_other_family(task):
    words = {task.phrase(number) for number in range(2 * len(MEMORY_PHRASES[task.family]))}
    assert len(words) == len(MEMORY_PHRASES[task.family]) >= 4
    for phrase in words:
        assert ('red cube' in phrase) == (task.family != 'sequence')
        assert parse_task(phrase) is None


def test_sentences_of_a_return_are_about_the_earlier_position():
    carried = truth(held='red cube')
    assert (
        language.say_subtask(Phase.CARRY, RETURN, carried) == 'move above where the red cube was'
    )
    assert language.narrate(Phase.CARRY, RETURN, carried) == (
        'I carry the red cube back to where it was'
    )
    assert language.narrate(Phase.ABOVE, RETURN, truth()) == (
        'I move above the red cube to put it back where it was'
    )
    assert language.narrate(Phase.HOLD, RETURN, truth()) == 'the red cube is back where it was'
    assert language.ask_done(Phase.HOLD, RETURN, truth()) == (language.DONE, 'yes')


def test_sentences_name_the_cover_and_the_thing_of_a_sequence():
    sequence = Task('sequence', 'red cube')
    assert language.say_subtask(Phase.ABOVE, HIDDEN, truth()) == (
        'move above the cover over the red cube'
    )
    assert (
        language.narrate(Phase.HOLD, HIDDEN, truth()) == 'I am above the cover over the red cube'
    )
    assert language.say_subtask(Phase.ABOVE, sequence, truth()) == 'move above the red cube'
    assert language.narrate(Phase.ABOVE, sequence, truth()) == (
        'I move above the red cube to reach it'
    )


@pytest.mark.parametrize('family', MEMORY_FAMILIES)
def test_every_phase_has_sentences(family):
    task = Task(family, 'red cube', spot=(0.3, 0.0))
    for phase in Phase:
        for say in (language.say_subtask, language.narrate):
            assert '{' not in say(phase, task, truth(held='red cube'))
