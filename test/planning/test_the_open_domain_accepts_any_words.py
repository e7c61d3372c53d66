"""The open domain accepts any instruction and stores answers as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.planning.domain import OpenDomain, load_domain, things

DOMAIN = OpenDomain('Is it done?')
WORDS = st.text(st.characters(codec='utf-8', exclude_categories=['Cc', 'Cs']), max_size=60)


def looked(look, answers):
    """Return the questions of a look, and what it yields for these answers."""
    questions = []
    try:
        questions = next(look)
        look.send([answers.get(question, '') for question in questions])
    except StopIteration as over:
        return questions, over.value
    raise AssertionError('the open domain asks once in a look')


@given(WORDS, st.lists(WORDS, max_size=3))
def test_every_instruction_is_accepted_and_recorded_with_its_words(instruction, known):
    assert DOMAIN.refusal(instruction, known) == ''
    assert DOMAIN.record(instruction, True, known) == instruction
    assert DOMAIN.record(instruction, False, known) == f'{instruction}, not finished'
    assert DOMAIN.facts_of_step(instruction) == [] == DOMAIN.facts_of_narration(instruction, 'yes')
    assert DOMAIN.moves(known) == ()


@pytest.mark.parametrize(
    'instruction, names',
    [
        ('pick up the screwdriver', ['screwdriver']),
        ('put the M8 bolt into the tray', ['M8 bolt', 'tray']),
        ('open the drawer', ['drawer']),
        ('put my blue cup on the top shelf, then wave', ['blue cup', 'top shelf']),
        ('fold a towel with the left hand', ['towel', 'left hand']),
        ('wave', []),
    ],
)
def test_the_things_of_an_instruction_are_found(instruction, names):
    assert things(instruction) == names


def test_after_a_step_it_asks_where_the_things_are_and_remembers_the_answers():
    answers = {'Where is the cup?': 'on the shelf.', 'Where is the shelf?': 'I do not know'}
    questions, seen = looked(DOMAIN.look((), 'put the cup on the shelf'), answers)
    assert questions == ['Where is the cup?', 'Where is the shelf?']
    assert seen.drafts == (('cup', 'object', 'cup: on the shelf'),) and seen.gone == ()


def test_a_look_at_the_whole_scene_asks_for_what_is_known():
    known = ['cup: on the shelf', 'task 1: put the cup on the shelf', 'What is new? nothing']
    questions, _ = looked(DOMAIN.look(known), {})
    assert questions == ['Where is the cup?']
    assert looked(DOMAIN.look([]), {})[0] == []


@pytest.mark.parametrize(
    'question, answer, fact',
    [
        ('Where is the screwdriver?', 'in the tray', ('screwdriver', 'object')),
        ('where are my keys?', 'on the desk', ('keys', 'object')),
        ('What is in the drawer?', 'two spoons', ('What is in the drawer?', 'note')),
    ],
)
def test_an_answer_is_a_fact(question, answer, fact):
    ((id, kind, text),) = DOMAIN.facts_of_answer(question, answer)
    assert (id, kind) == fact and text.endswith(answer)
    assert id in DOMAIN.names(text) or kind == 'note'


@pytest.mark.parametrize(
    'question, answer',
    [
        ('Is the drawer open?', 'yes'),
        ('Where is the cup?', ''),
        ('Where is the cup?', "I can't see it"),
        ('Where is the cup?', 'Unknown'),
        ('Subtask:', 'reach for the cup'),
    ],
)
def test_a_yes_an_unknown_and_a_narration_are_no_facts(question, answer):
    assert DOMAIN.facts_of_answer(question, answer) == []


def test_only_a_yes_to_the_success_question_says_that_it_is_done():
    assert DOMAIN.says_done('Is it done?', ' Yes ')
    assert not DOMAIN.says_done('Is it done?', 'no') and not DOMAIN.says_done('Is it?', 'yes')
    assert not OpenDomain().says_done('', 'yes')


def test_a_domain_is_loaded_by_its_name():
    assert isinstance(load_domain(''), OpenDomain) and isinstance(load_domain('open'), OpenDomain)
    assert type(load_domain('tabletop')).__name__ == 'TabletopDomain'
    reason = r'language.domain must be one of open, .*tabletop.* \(got kitchen\); install'
    with pytest.raises(ValueError, match=reason):
        load_domain('kitchen')
