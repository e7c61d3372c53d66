"""Covers hide the things under them, and touch neither these nor other things."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.demo.sim.covers import draw_covers, hidden_tasks, is_covered, uncovered
from embodied_kv.demo.sim.language import SCENE_QUESTIONS
from embodied_kv.demo.sim.scene import COVER_RGB, MOVABLE
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import task_scene


@pytest.fixture(scope='module')
def table():
    with Tabletop(task_scene('hidden')) as opened:
        yield opened


def covered(table, seed):
    """Put covers on the table of a scene; return its state, or None."""
    table.reset(seed)
    covers = draw_covers(table.objects(), np.random.default_rng(seed))
    if covers is None:
        return None
    table.cover(covers)
    return table.truth()


def test_a_picture_of_covers_equals_one_without_the_things_under_them(table):
    hidden = []
    for seed in range(30):
        truth = covered(table, seed)
        if truth is None:
            continue
        seen, poses = table.render(), table.poses()
        for i, thing in enumerate(truth.things):
            if is_covered(thing, truth.covers):
                poses[i, 2] = -2.0
                hidden.append(thing.shape)
        table.restore(table.state(), poses)
        for name, image in table.render().items():
            np.testing.assert_array_equal(image, seen[name])
    assert len(hidden) > 20 and {*hidden} == {'cube', 'cylinder'}


def test_a_covered_thing_was_visible_before(table):
    for seed in range(10):
        truth = covered(table, seed)
        if truth is None:
            continue
        state, poses = table.state(), table.poses()
        table.cover(truth.covers[:0])
        seen = table.render()['front']
        for i, thing in enumerate(truth.things):
            if is_covered(thing, truth.covers):
                without = poses.copy()
                without[i, 2] = -2.0
                table.restore(state, without)
                assert (table.render()['front'] != seen).any(), (seed, thing.name)


def test_covers_out_of_sight_change_no_picture(table):
    plain = task_scene('hidden', covers=0)
    with Tabletop(plain, 3) as without:
        table.reset(3)
        for name, image in without.render().items():
            np.testing.assert_array_equal(image, table.render()[name])
        table.cover(np.array([(0.4, 0.0)]))
        assert (table.render()['front'] != without.render()['front']).any()


def test_nothing_moves_when_covers_are_put_on_the_table(table):
    for seed in range(8):
        if covered(table, seed) is not None:
            before = table.poses()
            table.step(1.0)
            np.testing.assert_allclose(table.poses(), before, atol=1e-3)


def test_two_or_three_covers_hide_something_and_leave_something_visible(table):
    numbers, hidden = set(), set()
    for seed in range(40):
        truth = covered(table, seed)
        if truth is None:
            continue
        tasks = hidden_tasks(truth)
        numbers.add(len(truth.covers))
        hidden.add((len(truth.covers), len(tasks)))
        seen = uncovered(truth).things
        assert len(seen) + len(tasks) == len(truth.things)
        assert any(thing.shape in MOVABLE for thing in seen)
        for task in tasks:
            position = next(t.position for t in truth.things if t.name == task.target)
            np.testing.assert_allclose(task.spot, position[:2], atol=1e-3)
    assert numbers == {2, 3} and {(2, 1), (2, 2), (3, 1), (3, 2)} <= hidden


def test_covers_that_would_hide_everything_are_refused(table):
    table.reset(3)
    first, second = [thing for thing in table.objects() if thing.shape in MOVABLE][:2]
    near = replace(second, position=first.position + [0.005, 0.0, 0.0])
    drawn = [draw_covers([first, near], np.random.default_rng(seed)) for seed in range(40)]
    assert drawn == [None] * 40


def test_questions_are_about_what_is_visible(table):
    truth = uncovered(covered(table, 0))
    rng = np.random.default_rng(0)
    for ask in SCENE_QUESTIONS.values():
        for _ in range(20):
            question = ask(truth, rng)
            assert question is None or not any(
                task.target in question[0] and question[1] != 'no'
                for task in hidden_tasks(table.truth())
            )


def test_more_covers_than_the_scene_has_are_refused(table):
    with pytest.raises(ValueError, match=r'at most 3, the covers of the scene \(got 4\)'):
        table.cover(np.zeros((4, 2)))
    with pytest.raises(ValueError, match='covers must be >= 0'):
        task_scene('hidden', covers=-1)


def test_no_thing_has_the_colour_of_a_cover(table):
    for seed in range(10):
        table.reset(seed)
        for thing in table.scene.things:
            assert np.abs(np.subtract(thing.rgb, COVER_RGB)).max() > 0.2


def test_an_arranged_table_is_at_rest(table):
    table.reset(1)
    home, poses = table.state(), table.poses()
    table.command(home + 0.2)
    table.step(0.5)
    table.arrange(home, poses)
    np.testing.assert_array_equal(table.state(), home)
    table.step(0.5)
    np.testing.assert_allclose(table.state(), home, atol=0.02)
    np.testing.assert_allclose(table.poses(), poses, atol=1e-3)
