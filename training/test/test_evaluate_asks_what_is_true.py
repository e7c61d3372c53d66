"""Questions depend only on scene and frame; an answer counts if it is true word for word."""

from contextlib import closing

import pytest

from embodied_kv.demo.sim.language import SCENE_QUESTIONS, SUBTASK
from training.evaluate.cases import Case, Setting
from training.evaluate.questions import (
    Answer,
    Question,
    expert_plan,
    most_streams,
    questions,
    subtask_of,
)
from training.evaluate.report import NEAR, text_rows
from training.evaluate.worlds import World

CASE = Case('put', 0, 0)


@pytest.fixture(scope='module')
def episode():
    """Return the frames of an expert's episode, and its phase in each."""
    frames, phases = [], []
    with closing(World(64, Setting(dt=0.1, latency=0.0))) as world:
        world.begin(CASE)
        while not world.is_over:
            frames.append(world.look())
            chunks, phase = expert_plan(frames[-1:], chunk_size=10)
            phases.append(phase[0])
            world.step(chunks[0])
    return frames, phases


def test_every_kind_is_asked_in_turn(episode):
    asked = [q for frame, phase in zip(*episode, strict=True) for q in questions(frame, phase)]
    assert {q.kind for q in asked} == {'subtask', 'narrate', 'done', *SCENE_QUESTIONS}
    subtasks = [q.number for q in asked if q.kind == 'subtask']
    assert subtasks == list(range(0, len(episode[0]), 2))


def test_the_same_frame_is_asked_the_same(episode):
    for frame, phase in zip(*episode, strict=True):
        assert questions(frame, phase) == questions(frame, phase)


@pytest.mark.parametrize('life', [1, 2, 7, 9])
def test_no_more_questions_are_alive_than_there_is_room_for(episode, life):
    counts = [len(questions(frame, phase)) for frame, phase in zip(*episode, strict=True)]
    windows = [sum(counts[i : i + life]) for i in range(len(counts))]
    assert max(windows) <= most_streams(life)


def test_the_subtask_is_the_experts_phase(episode):
    said = list(dict.fromkeys(subtask_of(*moment) for moment in zip(*episode, strict=True)))
    target, place = episode[0][0].told.target, episode[0][0].told.place
    assert said[:2] == [f'move above the {target}', f'lower to the {target}']
    assert f'move above the {place}' in said


def answer(number, said, truth='lift the cube', kind='subtask'):
    return Answer(Question(CASE, number, kind, SUBTASK, truth), said)


def test_a_neighbours_subtask_is_within_one_frame():
    truths = ['lower', 'close', 'lift', 'carry', 'carry']
    said = ['lift', 'close', 'carry', 'lower', ' lift\n']
    rows = text_rows([answer(2, text, 'lift') for text in said], {CASE: truths})
    assert [(row['kind'], row['exact']['k'], row['exact']['n']) for row in rows] == [
        ('subtask', 2, 5),
        (NEAR, 4, 5),
    ]


def test_a_first_frame_has_no_frame_before():
    rows = text_rows([answer(0, 'last', 'first')], {CASE: ['first', 'second', 'last']})
    assert rows[1]['exact']['k'] == 0


def test_the_commonest_answer_is_what_saying_it_always_would_reach():
    answers = [answer(0, 'yes', truth, kind='done') for truth in ('no', 'no', 'no', 'yes')]
    (row,) = text_rows(answers, {})
    assert (row['exact']['rate'], row['commonest']) == (0.25, 0.75)
