"""The scripted expert completes tasks in the simulator, with noise and after a change of task."""

import numpy as np
import pytest

from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.tasks import FAMILIES, Task, draw_task, lies_in


@pytest.mark.parametrize('family', FAMILIES)
@pytest.mark.parametrize('seed', range(3))
def test_the_expert_does_the_task(episode, family, seed):
    e = episode(family, seed)
    judge = e.follow(e.task)
    assert judge.done and not judge.wrong, e.phases


@pytest.mark.parametrize('family', FAMILIES)
def test_the_expert_does_the_task_among_receptacles(episode, family):
    e = episode(family, 8, crowded=True)
    judge = e.follow(e.task)
    assert judge.done and not judge.wrong, e.phases


def test_a_thing_is_lifted_out_of_a_bin_and_its_neighbour_stays(episode):
    e = episode(
        'take', 0, crowded=True, receptacle_shapes=('bin',), objects=(4, 4), put_away=(4, 4)
    )
    before = {thing.name: thing for thing in e.table.objects()}
    assert e.follow(e.task).done
    for thing in e.table.objects():
        if thing.name != e.task.target:
            assert np.abs(thing.position - before[thing.name].position).max() < 0.005


def test_two_things_come_to_lie_side_by_side_in_a_bin(episode):
    e = episode('put', 5, receptacle_shapes=('bin',), objects=(2, 2))
    place = e.task.place
    for thing in e.table.objects():
        if thing.name != place:
            judge = e.follow(Task('put', thing.name, place=place))
            assert judge.done, e.phases
    e.rollout.advance(1.0)
    things = {thing.name: thing for thing in e.table.objects()}
    assert all(lies_in(things[n], things[place]) for n in things if n != place)


@pytest.mark.parametrize('family', FAMILIES)
def test_the_expert_recovers_from_noise(episode, family):
    e = episode(family, 10)
    assert e.follow(e.task, noise=0.015).done, e.phases


def test_what_is_held_is_put_down_before_another_thing_is_taken(episode):
    e = episode('pick', 3)
    assert e.follow(e.task).done
    held = e.table.truth().held
    assert held == e.task.target
    other = next(
        task
        for task in (
            draw_task(e.table.objects(), np.random.default_rng(i), 'pick') for i in range(50)
        )
        if task.target != held
    )
    e.phases.clear()
    assert e.follow(other).done
    assert e.phases[0] == Phase.PUT_DOWN
    lying = next(thing for thing in e.table.objects() if thing.name == held)
    assert lying.position[2] < 0.05


def test_a_thing_is_taken_from_where_it_was_put_down(episode):
    e = episode('put', 4)
    assert e.follow(e.task).done
    assert e.follow(Task('pick', e.task.target)).done
