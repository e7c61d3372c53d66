"""Without a planner, the sentences of a mission are executed one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.planning.mission import TRIES, MissionState, next_step, split_steps


@pytest.mark.parametrize(
    'words, steps',
    [
        ('open the drawer', ['open the drawer']),
        (
            'open the drawer, then put the cup on the shelf',
            ['open the drawer', 'put the cup on the shelf'],
        ),
        ('First, wave; then wait. Finally, bow!', ['wave', 'wait', 'bow']),
        ('1. open the drawer\n2. close it', ['open the drawer', 'close it']),
        ('put the cup next to the plate', ['put the cup next to the plate']),
        ('open the first drawer', ['open the first drawer']),
        ('Next to the cup, place the plate', ['Next to the cup, place the plate']),
        ("Pick up Dr. Smith's mug. Then wait.", ["Pick up Dr. Smith's mug", 'wait']),
        ('if the light is red, then stop', ['if the light is red, then stop']),
        ('wait until then', ['wait until then']),
        ('take the 2.5 mm key and then turn it', ['take the 2.5 mm key', 'turn it']),
        ('strengthen the grip', ['strengthen the grip']),
        (' ; then . ', []),
    ],
)
def test_a_mission_is_split_at_its_sentences(words, steps):
    assert list(split_steps(words)) == steps


def run(words, outcomes):
    """Return the answers to a mission whose steps have these outcomes."""
    state, said, outcomes = MissionState(words), [], iter(outcomes)
    for _ in range(100):
        answer = next_step(state)
        said.append((answer.kind, answer.words))
        if answer.kind in ('over', 'give up', 'impossible'):
            return said
        if answer.kind == 'done':
            state = state.in_part(state.part + 1, ())
        else:
            state = state.after(answer.words, next(outcomes, True))
    raise AssertionError('the mission does not end')


def test_steps_follow_one_another():
    assert run('open it, then close it', [True, True]) == [
        ('step', 'open it'),
        ('done', ''),
        ('step', 'close it'),
        ('done', ''),
        ('over', ''),
    ]


def test_a_step_that_fails_is_tried_again_and_given_up():
    assert [kind for kind, _ in run('open it', [False, True])] == ['step', 'step', 'done', 'over']
    *steps, (kind, words) = run('open it', [False] * TRIES)
    assert steps == [('step', 'open it')] * TRIES
    assert (kind, words) == ('give up', f'open it: not done in {TRIES} tries')


def test_a_mission_without_an_instruction_is_impossible():
    answer = next_step(MissionState(' ; 1. '))
    assert answer.kind == 'impossible'


@given(st.text(max_size=80), st.lists(st.booleans(), max_size=20))
def test_every_mission_ends(words, outcomes):
    kinds = [kind for kind, _ in run(words, outcomes)]
    assert kinds[-1] in ('over', 'give up', 'impossible')
    assert kinds.count('step') <= TRIES * len(split_steps(words))
