"""Two pasts with different answers end in the same frame; a guess succeeds as often as stated."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.demo.sim.covers import hidden_tasks
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import (
    AWAY,
    EVERY_PHRASE,
    MEMORY_FAMILIES,
    RETURNED,
    Task,
    can_be_taken,
    distances,
    lies_on_the_table,
    task_scene,
)
from training.evaluate import chance as command
from training.evaluate.actors import Expert
from training.evaluate.cases import Case, Setting
from training.evaluate.memory import Past, chance, guesses, placements
from training.evaluate.report import wilson
from training.evaluate.worlds import World, run

SETTING = Setting(dt=0.1, latency=0.04)


@pytest.fixture(scope='module')
def world():
    with closing(World(64, SETTING)) as opened:
        yield opened


@pytest.fixture
def table():
    with Tabletop(task_scene('hidden', objects=(4, 4)), 7) as opened:
        yield opened


class Fixed:
    """The expert with a given goal."""

    def __init__(self, goal):
        self._goal, self._expert = goal, Expert(10)

    def act(self, frames):
        return self._expert.act([replace(frame, told=self._goal) for frame in frames])

    def finish(self):
        pass


def begun(world, family, episode=0):
    """Begin a case; return its first frame."""
    world.begin(Case(family, 3, episode))
    return world.look()


def assert_same_frames(table, first, second):
    """Assert that two pasts end in the same frame, and that their moments differ."""
    ends = []
    for past in (first, second):
        table.reset(7)
        made = Past(table, 0.1, np.random.default_rng(0))
        past(made)
        ends.append((made.moments, table.render(), table.state()))
    (before, images, state), (others, same_images, same_state) = ends
    for name, image in images.items():
        np.testing.assert_array_equal(image, same_images[name])
    np.testing.assert_array_equal(state, same_state)
    assert any(
        a.text != b.text or not np.array_equal(a.images, b.images)
        for a, b in zip(before, others, strict=False)
    )


def names(table):
    return [thing.name for thing in table.objects() if can_be_taken(thing)]


def test_the_frame_after_two_sequences_is_the_same(table):
    def reach(name):
        def past(made):
            assert made.follow(Task('reach', name))
            made.rest()

        return past

    assert_same_frames(table, reach(names(table)[0]), reach(names(table)[1]))


def test_the_frame_after_two_displacements_is_the_same(table):
    moved, other = names(table)[:2]
    spots = placements(moved, table.truth())

    def displaced(spot):
        def past(made):
            made.move(moved, spot)
            assert made.follow(Task('reach', other))
            made.move(moved, spots[len(spots) // 2])
            made.rest()
            back = Task('return', moved, spot=spot)
            assert chance(back, table.truth()) > 0  # an admissible answer

        return past

    far = max(spots, key=lambda spot: distances(np.array(spots[0]), spot))
    assert_same_frames(table, displaced(spots[0]), displaced(far))


def test_the_frame_with_two_hidden_things_is_the_same(table):
    a, b, other = names(table)[:3]
    at = {thing.name: thing.position[:2] for thing in table.objects()}
    spots = np.array([at[a], at[b]])

    def hidden(first, second):
        def past(made):
            made.move(a, (9, 9))  # out of the way
            made.move(b, second)
            made.move(a, first)
            assert made.follow(Task('reach', other))
            made.rest()
            table.cover(spots)
            (answer,) = (t for t in hidden_tasks(table.truth()) if t.target == a)
            np.testing.assert_allclose(answer.spot, first, atol=1e-3)

        return past

    assert_same_frames(table, hidden(*spots), hidden(*spots[::-1]))


@pytest.mark.parametrize('family', ['hidden', 'sequence'])
def test_one_guess_succeeds_and_all_others_reach_a_wrong_thing(world, family):
    frame = begun(world, family)
    goals = guesses(frame.told, frame.truth)
    (outcomes,) = zip(*[run([world], [frame.case], Fixed(goal)) for goal in goals], strict=True)
    assert [outcome.success for outcome in outcomes] == [goal == frame.told for goal in goals]
    assert all(outcome.wrong != outcome.success for outcome in outcomes)
    assert chance(frame.told, frame.truth) == pytest.approx(1 / len(goals)) and len(goals) > 1


def test_a_guess_of_a_return_succeeds_only_near_the_earlier_position(world):
    frame = begun(world, 'return')
    goals = guesses(frame.told, frame.truth)
    far = distances(np.array([goal.spot for goal in goals]), frame.told.spot)
    assert chance(frame.told, frame.truth) == (far < RETURNED).mean() < 0.2
    for limit, is_right in ((0.6 * RETURNED, True), (1.4 * RETURNED, False)):
        goal = goals[np.abs(far - limit).argmin()]
        (outcome,) = run([world], [frame.case], Fixed(goal))
        assert outcome.success == is_right and not outcome.wrong


def test_guesses_of_a_return_are_free_and_far_from_the_present_position(world):
    frame = begun(world, 'return', 1)
    here = next(t.position for t in frame.truth.things if t.name == frame.told.target)
    for goal in guesses(frame.told, frame.truth):
        assert distances(here, goal.spot) >= AWAY
        for thing in frame.truth.things:
            if thing.name != goal.target and lies_on_the_table(thing, frame.truth.things):
                assert distances(thing.position, goal.spot) > 0.04


@pytest.mark.parametrize('family', MEMORY_FAMILIES)
def test_the_expert_does_tasks_about_the_past(world, family):
    cases = [Case(family, 4, episode) for episode in range(3)]
    outcomes = run([world], cases, Expert(10))
    assert [(o.success, o.wrong) for o in outcomes] == [(True, False)] * 3


@pytest.mark.parametrize('family', MEMORY_FAMILIES)
def test_a_past_has_moments_and_no_past_remains_for_other_families(world, family):
    frame = begun(world, family)
    task, moments = frame.told, frame.memory
    assert frame.observation.instruction in {
        task.phrase(number) for number in range(2 * len(EVERY_PHRASE[family]))
    }
    assert moments[0].time == 0.0 and len(moments) >= 2
    assert all(0 < b.time - a.time < 2.05 for a, b in zip(moments, moments[1:], strict=False))
    assert all(moment.images[0].shape == (64, 64, 3) for moment in moments)
    assert begun(world, 'reach').memory == ()


def test_the_same_case_has_the_same_past(world):
    first, second = (begun(world, 'sequence') for _ in range(2))
    assert first.told == second.told
    for a, b in zip(first.memory, second.memory, strict=True):
        assert (a.time, a.instruction, a.text) == (b.time, b.instruction, b.text)
        np.testing.assert_array_equal(a.images, b.images)


def test_a_wrong_colour_is_refused_for_tasks_about_the_past(capsys):
    from training.evaluate.__main__ import main

    with pytest.raises(SystemExit):
        main(['--families', 'hidden', '--control', 'wrong_colour'])
    assert 'wrong_colour is not for return, hidden, sequence' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize('family', MEMORY_FAMILIES)
def test_a_guess_succeeds_as_often_as_chance(family):
    row = command.measure(family, 40, 0)
    low, high = wilson(row['guess'], row['episodes'], z=3.3)  # 99.9%
    assert low <= row['chance'] <= high
    assert row['expert'] >= 38


@pytest.mark.parametrize('family', ['return', 'sequence'])
def test_further_tasks_come_between_a_past_and_its_task(family):
    setting = replace(SETTING, between=3)
    with closing(World(64, SETTING)) as short, closing(World(64, setting)) as long:
        frames = [begun(world, family) for world in (short, long)]
    plain, further = ([m.instruction for m in frame.memory] for frame in frames)
    assert len(dict.fromkeys(further)) > len(dict.fromkeys(plain))
    assert 0 < chance(frames[1].told, frames[1].truth) < 1
