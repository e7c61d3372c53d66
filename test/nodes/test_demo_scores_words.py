"""A text is right or wrong by the true state at the frame that it is about."""

import numpy as np
import pytest

from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.score import Score, sentences
from embodied_kv.demo.sim.language import NARRATE, SUBTASK
from embodied_kv.demo.sim.rollout import Rollout
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import Task, task_scene
from training.policy.expert import plan

SECOND = 1_000_000_000
DT = 1 / 30  # s between two moments


@pytest.fixture(scope='module')
def task():
    with Tabletop(task_scene('put'), 1_000_001) as table:
        return Task('pick', table.scene.things[1].name)


@pytest.fixture(scope='module')
def moments(task):
    """Return the moments of two seconds of an expert, 30 per second."""
    with Tabletop(task_scene('put'), 1_000_001) as table:
        rollout, seen = Rollout(table), []
        for i in range(60):
            truth, state = table.truth(), table.state()
            seen.append(
                TrueMoment(round(i * DT * SECOND), table.seed, state, truth, table.poses())
            )
            orders = Orders.of([task], [[thing.name for thing in truth.things]])
            actions, _ = plan(state[None], Tables.of([truth]), orders, 2)
            rollout.follow(actions[0], rollout.time, 0.1)
            rollout.advance(DT)
        return seen


@pytest.fixture
def score(task):
    return Score(lambda moment: task if moment.stamp > 0.2 * SECOND else None)


def hear(score, moments, number, said, query=SUBTASK):
    """Score a text about one of all moments; return the counts."""
    score.add_text(moments[number].stamp, query, said)
    for moment in moments:
        score.add_moment(moment)
    return score.report()['subtask' if query == SUBTASK else 'narration']


def change(moments, task):
    """Return the index of a moment whose subtask differs from that of the moment before."""
    said = sentences(SUBTASK, moments, task)
    return next(i for i in range(10, len(said)) if said[i] != said[i - 1])


@pytest.mark.parametrize('query', [SUBTASK, NARRATE])
def test_the_truth_is_exact(score, moments, task, query):
    truth = sentences(query, moments[20:21], task)[0]
    assert task.target in truth
    counted = hear(score, moments, 20, f' {truth}', query)
    assert counted == {'exact': 1, 'within one frame': 1, 'of': 1}


def test_what_is_true_of_the_neighbouring_frame_is_near(score, moments, task):
    number = change(moments, task)
    late = sentences(SUBTASK, moments[number - 1 : number], task)[0]
    counted = hear(score, moments, number, late)
    assert counted == {'exact': 0, 'within one frame': 1, 'of': 1}


def test_what_is_true_of_no_frame_around_is_wrong(score, moments, task):
    number = change(moments, task)
    early = sentences(SUBTASK, moments[number : number + 1], task)[0]
    counted = hear(score, moments, number - 5, early)
    assert counted == {'exact': 0, 'within one frame': 0, 'of': 1}


def test_a_frame_whose_task_is_uncertain_is_not_counted(score, moments):
    assert hear(score, moments, 3, 'lift the red cube')['of'] == 0


def test_a_sentence_waits_until_its_frame_has_neighbours(score, moments, task):
    score.add_text(moments[20].stamp, SUBTASK, sentences(SUBTASK, moments[20:21], task)[0])
    for moment in moments[:22]:
        score.add_moment(moment)
    assert score.report()['subtask']['of'] == 0
    for moment in moments[22:]:
        score.add_moment(moment)
    assert score.report()['subtask']['exact'] == 1


def test_answers_to_other_questions_are_not_its_matter(score, moments):
    score.add_text(moments[20].stamp, 'What is in the gripper?', 'nothing')
    for moment in moments:
        score.add_moment(moment)
    assert all(counted['of'] == 0 for counted in score.report().values())


def test_the_sentences_of_an_expert_change_as_it_works(moments, task):
    assert len(np.unique(sentences(SUBTASK, moments, task))) > 1
