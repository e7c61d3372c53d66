"""A mission question contains what the next step depends on; answers are parsed by kind."""

import numpy as np
import pytest

from embodied_kv.model.planner_prompts import (
    PlannerAnswer,
    Tried,
    mission_question,
    plain,
    read_answer,
)
from training.planner.mission_draws import draw_mission, draw_table
from training.planner.mission_rollout import roll_out

PUT, PICK = 'put the red cube into the bin', 'pick up the red cube'


def test_a_question_tells_mission_part_moves_and_what_was_tried():
    assert (
        mission_question('Empty  the bin.', 2, (12, 10, 9, 8), [Tried(PUT, True)])
        == f'mission: empty the bin; part 2; last moved 12, 10, 9; done: {PUT}'
    )
    assert mission_question('undo the last step', 1) == 'mission: undo the last step; part 1'


def test_failures_are_told_until_a_step_is_done():
    tried = [Tried(PUT, False), Tried(PUT, False), Tried(PICK, True)]
    assert mission_question('m', 1, (), tried) == (
        f'mission: m; part 1; failed: {PUT}; failed: {PUT}; done: {PICK}'
    )
    after = [*tried, Tried(PUT, True), Tried(PICK, False)]
    assert mission_question('m', 1, (), after) == (
        f'mission: m; part 1; done: {PUT}; failed: {PICK}'
    )


def test_what_was_said_is_told_in_a_word():
    tried = [Tried('say: the red cube is on the table', True)]
    assert mission_question('m', 1, (), tried) == 'mission: m; part 1; done: say'


def test_a_mission_is_plain_in_one_line():
    assert plain(' Put it\n into  the Bin!') == 'put it into the bin'


def test_a_mission_cannot_tell_what_was_done_for_it():
    said = mission_question('empty the bin; part 3; done: say', 1)
    assert said == 'mission: empty the bin, part 3, done: say; part 1'


def test_no_mission_is_no_question():
    with pytest.raises(ValueError, match='mission must have words'):
        mission_question(' . ', 1)


@pytest.mark.parametrize(
    ('text', 'answer'),
    [
        (f' {PUT}', PlannerAnswer('step', PUT)),
        (f'{PUT}\nThis puts it away.', PlannerAnswer('step', PUT)),
        ('Done.', PlannerAnswer('done')),
        ('OVER', PlannerAnswer('over')),
        ('Say: it is here', PlannerAnswer('say', 'it is here')),
        ('say:', PlannerAnswer('step', 'say:')),
        ('done', PlannerAnswer('done')),
        ('over', PlannerAnswer('over')),
        ('say: I hold nothing', PlannerAnswer('say', 'I hold nothing')),
        ('impossible: I know no bin', PlannerAnswer('impossible', 'I know no bin')),
        (f'give up: {PUT}', PlannerAnswer('give up', PUT)),
    ],
)
def test_an_answer_is_read_as_one_kind(text, answer):
    assert read_answer(text) == answer


def test_no_words_are_no_answer():
    with pytest.raises(ValueError, match='returned no text'):
        read_answer('  ')


def test_every_answer_of_the_rules_is_read_as_what_it_is():
    kinds = set()
    for seed in range(150):
        rng = np.random.default_rng(seed)
        table = draw_table(rng, 6)
        for turn in roll_out(draw_mission(rng, table), table, rng, success=0.5):
            answer = read_answer(turn.right.text)
            assert answer.kind == turn.right.kind.replace('task', 'step')
            kinds.add(answer.kind)
    assert kinds == {'step', 'say', 'done', 'over', 'impossible', 'give up'}
