"""The mission at the end of a demo is feasible, one sentence, and judged by the true state."""

from dataclasses import replace

import numpy as np
import pytest
from demo_play import SEED
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.demo.director import SECOND, GivenTask
from embodied_kv.demo.last_mission import Errand, LastMission, choose_mission
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.recording import Recording
from embodied_kv.demo.sim.table_memory import true_table
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import task_scene
from embodied_kv.demo.video import HASTE, mission_page
from training.planner.mission_oracle import begin, next_step
from training.planner.mission_phrases import say_mission
from training.planner.missions import Mission, Part, Which
from training.planner.simulated_table import SimulatedTable


def possible(task, moment):
    return ''


@pytest.fixture(scope='module')
def table():
    with Tabletop(task_scene('put'), SEED) as table:
        yield table


@pytest.fixture(scope='module')
def moment(table):
    table.reset(SEED)
    return TrueMoment(SECOND, SEED, table.state(), table.truth(), table.poses())


def put(moment, names, place, seconds=1):
    """Return a later moment with these things in the place."""
    there = next(thing.position for thing in moment.truth.things if thing.name == place)
    things = tuple(
        replace(thing, position=np.array([*there[:2], thing.position[2]]))
        if thing.name in names
        else thing
        for thing in moment.truth.things
    )
    truth = replace(moment.truth, things=things)
    return replace(moment, stamp=moment.stamp + seconds * SECOND, truth=truth)


def parsed(errand):
    """Return the errand in the form of the missions of the training set."""
    place = errand.place if errand.family == 'take' else ''
    things = Which(names=errand.names, place=place)
    moves = [Part(errand.family, things, '' if place else errand.place)]
    if errand.before:
        moves.insert(0, Part('take', Which(names=(errand.before,), place=errand.place)))
    return Mission((*moves, Part('say', place=errand.place, about='inside')))


def steps_of(errand, moment):
    """Return the steps that the rules give if each of them succeeds, and the report."""
    mission = parsed(errand)
    table, found = SimulatedTable.of(true_table(moment.truth)), []
    progress = begin(table)
    while (step := next_step(mission, table, progress)).kind != 'over':
        assert step.kind in ('task', 'say', 'done'), step.text
        table = table.do(step.task) if step.task else table
        progress = progress.after(step, True, table)
        found += [step.text] if step.kind != 'done' else []
    return found


def test_it_is_a_move_and_a_sentence(moment):
    *moves, said = steps_of(choose_mission(moment, possible), moment)
    assert len(moves) == 1 and said.startswith('say: the ')


@pytest.mark.parametrize('family', ['put', 'take'])
@pytest.mark.parametrize('place', ['blue bin', 'green plate'])
@pytest.mark.parametrize('names', [('red cube',), ('red cube', 'cyan cylinder')])
@pytest.mark.parametrize('before', ['', 'green cube'])
def test_sentence_is_one_that_the_planner_was_trained_with(family, place, names, before):
    errand = Errand(family, names, place, before if family == 'put' else '')
    rng = np.random.default_rng(0)
    assert errand.words in {''.join(say_mission(parsed(errand), rng)) for _ in range(9000)}


def test_what_cannot_be_done_is_not_asked_for(moment):
    (first,) = choose_mission(moment, possible).names
    other = choose_mission(moment, lambda task, _: 'no' if task.target == first else '')
    assert other.names and first not in other.names
    assert choose_mission(moment, lambda task, _: 'nobody can') is None


def test_without_an_empty_place_one_thing_replaces_another(moment):
    table = true_table(moment.truth)
    assert len(table.places) == 1, 'the scene has one place'
    (place,) = table.places
    name = next(iter(table.where))
    full = put(moment, [name], place)
    mission = choose_mission(full, possible)
    assert (mission.family, mission.place, mission.before) == ('put', place, name)
    assert len(steps_of(mission, full)) == 3

    def only_take(task, _):
        return '' if task.family == 'take' else 'no'

    mission = choose_mission(full, only_take)
    assert (mission.family, mission.names, mission.before) == ('take', (name,), '')
    assert len(steps_of(mission, full)) == 2


def test_it_is_done_once_both_things_are_where_they_should_be(moment):
    table = true_table(moment.truth)
    (place,), (first, second) = table.places, tuple(table.where)[:2]
    errand = Errand('put', (second,), place, first)
    assert not errand.is_done(true_table(put(moment, [first], place).truth))
    assert not errand.is_done(true_table(put(moment, [first, second], place).truth))
    assert errand.is_done(true_table(put(moment, [second], place).truth))


@given(seed=st.integers(1_000_000, 2_000_000))
@settings(max_examples=15, deadline=None)
def test_nothing_is_put_where_something_lies(table, seed):
    table.reset(seed)
    moment = TrueMoment(SECOND, seed, table.state(), table.truth(), table.poses())
    mission = choose_mission(moment, possible)
    known = true_table(moment.truth)
    there = [mission.before] if mission.before else []
    assert mission.family == 'take' or known.inside(mission.place) == there


@pytest.fixture
def mission(moment):
    """Return a mission with two things, as other programs may request it."""
    table = true_table(moment.truth)
    names, place = tuple(table.where)[:2], next(iter(table.places))
    return LastMission(Errand('put', names, place), moment)


def carried_out(mission, moment, honest=True):
    """Carry out both steps, and report that both things are in the place.

    The second step moves nothing unless `honest`.
    """
    (first, second), place = mission.errand.names, mission.errand.place
    mission.set_progress(moment.stamp, '', 0)
    for i, name in enumerate((first, second)):
        mission.set_progress(moment.stamp + 2 * i * SECOND, f'put the {name} into the {place}', i)
        there = (first, second)[: i + 1] if honest else (first,)
        mission.add_moment(put(moment, there, place, 2 * i + 1))
    mission.set_progress(moment.stamp + 4 * SECOND, '', 2)
    said = f'the {place} holds the {" and the ".join(sorted((first, second)))}'
    mission.end(moment.stamp + 5 * SECOND, True, '3 steps', (said,))
    return mission


def test_it_is_judged_by_the_truth_and_not_by_what_the_robot_says(mission, moment):
    good = carried_out(mission, moment)
    assert good.done and good.right and [step.done for step in good.steps] == [True, True]
    assert [step.seconds for step in good.steps] == [2.0, 2.0]
    bad = carried_out(LastMission(mission.errand, moment), moment, honest=False)
    assert bad.success and not bad.done and not bad.right
    assert [step.done for step in bad.steps] == [True, False]


def test_the_report_says_all_of_it(mission, moment):
    found = carried_out(mission, moment).report(lambda stamp: stamp / 1e9)
    assert (found['at'], found['seconds'], found['done'], found['right']) == (1.0, 5.0, True, True)
    assert found['told'] == mission.errand.words and found['said'] == [found['truth']]
    assert [step['seconds'] for step in found['steps']] == [2.0, 2.0]


def test_what_is_heard_after_its_end_changes_nothing(mission, moment):
    told = carried_out(mission, moment)
    told.set_progress(moment.stamp + 6 * SECOND, 'pick up the red cube', 3)
    assert len(told.steps) == 2


def test_its_page_tells_the_sentence_the_steps_and_the_answer(mission, moment):
    told, recording = carried_out(mission, moment), Recording(60.0)
    recording.add_moment(moment)
    during = mission_page(recording, told, moment.stamp + 3 * SECOND)
    assert during.title == told.errand.words and during.pace == HASTE
    assert [past[0] for past in during.past] == ['✓ done', '…']
    assert not during.answered and during.mark[0] == ''
    end = mission_page(recording, told, told.ended)
    assert told.said[0] in end.answered and end.mark[0] == '✓ done'
    assert isinstance(told.steps[0], GivenTask) and len(end.past) == 2
