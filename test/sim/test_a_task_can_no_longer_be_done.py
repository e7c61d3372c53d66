"""A task is impossible only if what it needs fell, or is out of reach or out of view."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.demo.sim.scene import SIZES
from embodied_kv.demo.sim.tabletop import ObjectTruth, Tabletop, Truth
from embodied_kv.demo.sim.tasks import FAMILIES, Task, draw_task, hindrance, task_scene

TASKS = [
    Task('reach', 'red cube'),
    Task('pick', 'red cube'),
    Task('put', 'red cube', place='cyan bin'),
    Task('push', 'red cube', side='left'),
    Task('take', 'red cube', place='cyan bin'),
    Task('next', 'red cube', place='cyan bin'),
]


def thing(name, x, y, z=None):
    colour, shape = name.split()
    size = np.array(SIZES[shape])
    z = size[2] / 2 if z is None else z
    return ObjectTruth(name, shape, colour, np.array([x, y, z]), 0.0, size)


def truth(x, y, z=None, held=''):
    things = thing('red cube', x, y, z), thing('cyan bin', 0.45, 0.1), thing('blue cube', 9, 9)
    return Truth(things, np.zeros(3), held)


def everything(points):
    return np.ones(len(points), bool)


def nothing(points):
    return np.zeros(len(points), bool)


@pytest.mark.parametrize('task', TASKS)
def test_what_lies_on_the_table_in_reach_and_in_view_hinders_nobody(task):
    assert hindrance(task, truth(0.3, -0.1), everything) == ''


@pytest.mark.parametrize('task', TASKS)
def test_what_lies_too_far_is_out_of_reach(task):
    assert hindrance(task, truth(0.7, 0.0), everything) == 'the red cube is out of reach'
    assert hindrance(task, truth(0.6, 0.4), everything) == 'the red cube is out of reach'


@pytest.mark.parametrize('task', TASKS)
def test_what_the_gripper_holds_is_in_reach(task):
    assert hindrance(task, truth(0.7, 0.0, z=0.2, held='red cube'), everything) == ''


def test_a_push_needs_the_side_that_the_gripper_comes_from():
    there = truth(0.6, 0.28)
    assert hindrance(Task('push', 'red cube', side='left'), there, everything) == ''
    assert hindrance(Task('push', 'red cube', side='right'), there, everything) != ''


def test_a_place_out_of_reach_hinders_a_put_though_the_target_is_held():
    at = truth(0.3, 0.0, z=0.2, held='red cube')
    far = replace(at, things=(at.things[0], thing('cyan bin', 0.8, 0.0)))
    assert hindrance(TASKS[2], far, everything) == 'the cyan bin is out of reach'
    assert hindrance(TASKS[1], far, everything) == ''


@pytest.mark.parametrize('task', TASKS)
def test_what_fell_is_not_called_out_of_reach(task):
    assert hindrance(task, truth(0.3, 0.6, z=-0.7), nothing) == 'the red cube fell off the table'


@pytest.mark.parametrize('task', TASKS)
def test_what_no_camera_sees_is_out_of_view(task):
    assert hindrance(task, truth(0.3, -0.1), nothing) == 'the red cube is out of view'


def test_a_full_place_hinders_a_put_and_a_crowd_a_thing_beside_it():
    full = [thing('blue cube', 0.475, 0.1055, 0.03), thing('green cube', 0.425, 0.0945, 0.03)]
    crowd = [
        thing('blue cube', *at) for at in ((0.31, 0.07), (0.59, 0.13), (0.42, 0.23), (0.48, -0.03))
    ]
    at = thing('red cube', 0.3, -0.15), thing('cyan bin', 0.45, 0.1)
    put, beside = TASKS[2], TASKS[5]
    assert hindrance(put, Truth((*at, full[0]), np.zeros(3), ''), everything) == ''
    found = hindrance(put, Truth((*at, *full), np.zeros(3), ''), everything)
    assert found == 'there is no room in the cyan bin'
    found = hindrance(beside, Truth((*at, *crowd), np.zeros(3), ''), everything)
    assert found == 'there is no room beside the cyan bin'
    assert hindrance(beside, Truth((*at, *crowd[:3]), np.zeros(3), ''), everything) == ''


@pytest.mark.parametrize('family', FAMILIES)
def test_every_task_of_a_fresh_scene_can_be_done(family):
    rng = np.random.default_rng(0)
    with Tabletop(task_scene('put', crowded=True)) as table:
        for seed in range(1_000_000, 1_000_020):
            table.reset(seed)
            if task := draw_task(table.objects(), rng, family):
                assert hindrance(task, table.truth(), table.sees) == '', (seed, task)
