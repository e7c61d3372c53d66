"""Judges of tasks decide correctly on hand-made ground truths."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.demo.sim.scene import SIZES, draw_scene
from embodied_kv.demo.sim.tabletop import ObjectTruth, Truth
from embodied_kv.demo.sim.tasks import (
    FAMILIES,
    STEADY,
    Judge,
    Task,
    can_be_taken,
    draw_task,
    task_scene,
)


def thing(name: str, x: float, y: float, z: float | None = None) -> ObjectTruth:
    colour, shape = name.split()
    size = np.array(SIZES[shape])
    z = size[2] / 2 if z is None else z
    return ObjectTruth(name, shape, colour, np.array([x, y, z]), 0.0, size)


BIN, CUBE, OTHER = (
    thing('cyan bin', 0.45, 0.1),
    thing('red cube', 0.3, 0.0),
    thing('blue cylinder', 0.35, -0.15),
)
AWAY = np.array([0.2, 0.2, 0.3])


def truth(*things, grip=AWAY, held='') -> Truth:
    return Truth(things or (BIN, CUBE, OTHER), np.asarray(grip, float), held)


def moved(of: ObjectTruth, x: float, y: float, z: float | None = None) -> ObjectTruth:
    return thing(of.name, x, y, z)


def judged(task: Task, *moments: Truth) -> Judge:
    judge = Judge(task, truth())
    for moment in moments:
        judge.see(moment)
    return judge


def test_a_reach_has_to_last():
    above = truth(grip=(0.31, 0.01, 0.13))
    task = Task('reach', 'red cube')
    assert not judged(task, *[above] * (STEADY - 1)).done
    assert judged(task, *[above] * STEADY).done
    assert not judged(task, *[above] * (STEADY - 1), truth(), above).done
    assert not judged(task, *[truth(grip=(0.3, 0.03, 0.13))] * STEADY).done  # 3 cm off


def test_reaching_another_thing_is_wrong():
    judge = judged(Task('reach', 'red cube'), *[truth(grip=(0.35, -0.15, 0.13))] * STEADY)
    assert judge.wrong and not judge.done


def test_a_pick_lifts_six_centimetres():
    def lifted(z):
        return truth(BIN, moved(CUBE, 0.3, 0, z), OTHER, held='red cube')

    assert not judged(Task('pick', 'red cube'), *[lifted(0.08)] * STEADY).done
    assert judged(Task('pick', 'red cube'), *[lifted(0.09)] * STEADY).done
    assert judged(Task('pick', 'blue cylinder'), *[lifted(0.09)] * STEADY).wrong


def test_a_put_lies_in_its_place_and_is_let_go():
    inside = moved(CUBE, 0.44, 0.11, 0.03)
    task = Task('put', 'red cube', place='cyan bin')
    assert not judged(task, truth(BIN, inside, OTHER, held='red cube')).done
    assert judged(task, truth(BIN, inside, OTHER)).done
    assert not judged(task, truth(BIN, moved(CUBE, 0.44, 0.17), OTHER)).done


def test_a_push_moves_eight_centimetres_to_its_side():
    task = Task('push', 'red cube', side='left')
    assert not judged(task, truth(BIN, moved(CUBE, 0.3, 0.07), OTHER)).done
    assert judged(task, truth(BIN, moved(CUBE, 0.3, 0.09), OTHER)).done
    assert not judged(task, truth(BIN, moved(CUBE, 0.3, -0.09), OTHER)).done
    fallen = truth(BIN, moved(CUBE, 0.3, 0.6, -0.5), OTHER)
    assert not judged(task, fallen).done


def test_what_the_target_pushes_along_is_not_wrong():
    task = Task('push', 'red cube', side='right')
    along = truth(BIN, moved(CUBE, 0.3, -0.05), moved(OTHER, 0.35, -0.25))
    instead = truth(BIN, CUBE, moved(OTHER, 0.35, -0.25))
    assert not judged(task, along).wrong
    assert judged(task, instead).wrong


def test_only_tasks_that_make_sense_are_drawn():
    things = (BIN, moved(CUBE, 0.45, 0.1, 0.03), moved(OTHER, 0.35, -0.2, 0.021))
    rng = np.random.default_rng(0)
    assert not can_be_taken(things[2])  # a cylinder on its side
    assert all(draw_task(things, rng, family) is None for family in ('put', 'push'))
    assert draw_task(things, rng, 'take') == Task('take', 'red cube', place='cyan bin')
    assert {draw_task(things, rng, 'next').place for _ in range(20)} == {
        'blue cylinder',
        'cyan bin',
    }
    drawn = [draw_task(truth().things, rng) for _ in range(200)]
    assert {task.family for task in drawn} == set(FAMILIES) - {'take'}  # all are on the table
    assert not any(task.target == 'cyan bin' for task in drawn)
    pushes = [draw_task((thing('red cube', 0.3, 0.2),), rng, 'push') for _ in range(20)]
    assert {task.side for task in pushes} == {'right'}  # no room on the left


def test_the_same_generator_draws_the_same_task():
    draw = [draw_task(truth().things, np.random.default_rng(5)) for _ in range(2)]
    assert draw[0] == draw[1]


def test_tasks_of_the_evaluation_are_those_that_figures_were_measured_on():
    scene = draw_scene(task_scene('put'), np.random.default_rng(2_000_000))
    things = [thing(t.name, *t.position) for t in scene.things]
    drawn = [
        draw_task(things, np.random.default_rng((2_000_000, 1)), family) for family in FAMILIES[:4]
    ]
    assert drawn == [
        Task('reach', 'red cube'),
        Task('pick', 'red cube'),
        Task('put', 'red cube', place='blue plate'),
        Task('push', 'red cube', side='left'),
    ]


@pytest.mark.parametrize('number', range(16))
def test_every_phrase_names_the_thing_and_the_place(number):
    put = Task('put', 'red cube', place='cyan bin').phrase(number)
    assert 'red cube' in put and 'into the cyan bin' in put
    assert 'on' in replace(Task('put', 'red cube', place='cyan plate')).phrase(number)
    assert 'left' in Task('push', 'red cube', side='left').phrase(number)


@pytest.mark.parametrize('number', range(8))
def test_every_phrase_says_from_where_and_beside_what(number):
    taken = Task('take', 'red cube', place='cyan bin').phrase(number)
    assert 'red cube' in taken and ('from the cyan bin' in taken or 'out of the cyan bin' in taken)
    assert 'cyan plate' in Task('take', 'red cube', place='cyan plate').phrase(number)
    beside = Task('next', 'red cube', place='blue cylinder').phrase(number)
    assert 'next to the blue cylinder' in beside or 'beside the blue cylinder' in beside


def test_a_thing_is_taken_when_it_lies_on_the_table_and_is_let_go():
    task = Task('take', 'red cube', place='cyan bin')
    judge = Judge(task, truth(BIN, moved(CUBE, 0.45, 0.1, 0.03), OTHER))
    for moment in (
        truth(BIN, moved(CUBE, 0.45, 0.1, 0.15), OTHER, held='red cube'),
        truth(BIN, moved(CUBE, 0.3, 0.0), OTHER, held='red cube'),
        truth(BIN, moved(CUBE, 0.3, 0.0, 0.04), OTHER),  # falls
    ):
        judge.see(moment)
        assert not judge.done
    judge.see(truth())
    assert judge.done and not judge.wrong


def test_taking_the_neighbour_is_wrong_and_what_lay_on_the_table_was_not_taken():
    inside = moved(CUBE, 0.47, 0.1, 0.03), moved(OTHER, 0.43, 0.1, 0.04)
    judge = Judge(Task('take', 'red cube', place='cyan bin'), truth(BIN, *inside))
    judge.see(truth(BIN, inside[0], OTHER))
    assert judge.wrong and not judge.done
    judge = Judge(Task('take', 'red cube', place='cyan bin'), truth(BIN, inside[0], OTHER))
    judge.see(truth(BIN, inside[0], moved(OTHER, 0.3, -0.2)))
    assert not judge.wrong


def test_next_to_is_a_small_gap_on_the_table():
    task = Task('next', 'red cube', place='blue cylinder')
    near, far = 0.35 - 0.0318 - 0.021 - 0.04, 0.35 - 0.0318 - 0.021 - 0.05
    beside = truth(BIN, moved(CUBE, near, -0.15), OTHER)
    assert judged(task, beside).done
    assert not judged(task, replace(beside, held='red cube')).done
    assert not judged(task, truth(BIN, moved(CUBE, far, -0.15), OTHER)).done
    assert not judged(task, truth(BIN, moved(CUBE, near, -0.15, 0.1), OTHER)).done
    was_there = Judge(task, beside)
    was_there.see(truth(BIN, moved(CUBE, near - 0.003, -0.16), OTHER))
    assert not was_there.done


def test_two_things_fit_a_receptacle_and_three_do_not():
    third = thing('green cube', 0.3, -0.2)
    far, near = moved(CUBE, 0.475, 0.1055, 0.03), moved(OTHER, 0.425, 0.0945, 0.04)
    rng = np.random.default_rng(0)
    one, two = (BIN, far, third), (BIN, far, near, third)
    assert draw_task(one, rng, 'put') == Task('put', 'green cube', place='cyan bin')
    assert draw_task(two, rng, 'put') is None


def test_put_scenes_always_have_a_receptacle():
    assert task_scene('put').receptacles == (1, 1)
    assert task_scene('reach').objects == (2, 5)


@pytest.mark.parametrize('family', FAMILIES)
def test_crowded_scenes_have_two_receptacles_and_six_things_at_most(family):
    config = task_scene(family, crowded=True, image_size=96)
    assert config.receptacles == (2, 2) and config.objects == (2, 4) and config.put_away[0] == 1
    assert config.image_size == 96
