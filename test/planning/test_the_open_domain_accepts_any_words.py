"""The open domain accepts any instruction and stores answers as text."""

import time
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.planning import domain
from embodied_kv.planning.domain import GROUP, MOST_ASKED, OpenDomain, load_domain, things
from embodied_kv.robots.contract import Language

ASKED = 'Is it done?'
DOMAIN = OpenDomain(Language(success=ASKED, prompts=['Subtask:', 'What do you do?']))
WORDS = st.text(st.characters(codec='utf-8', exclude_categories=['Cc', 'Cs']), max_size=60)


UNKNOWN = (
    "I can't see it",
    'I can\u2019t see it',
    'Unknown',
    'I am not sure',
    "I'm not sure",
    'no idea',
    'it is not visible',
    'there is no cup',
    'none',
    'cannot see it',
)


def looked(look, answers):
    """Return the questions of a scene query, and its result for these answers."""
    questions = []
    try:
        questions = next(look)
        look.send([answers.get(question, '') for question in questions])
    except StopIteration as over:
        return questions, over.value
    raise AssertionError('the open domain asks once in a look')


@given(WORDS, st.lists(st.tuples(WORDS, st.just('note'), WORDS), max_size=3))
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
        ('pick up the cup carefully', ['cup']),
        ('turn the knob clockwise', ['knob']),
        ('move the joint 0.5 rad', ['joint']),
        ('bring the 2.5 kg weight', ['2.5 kg weight']),
        ('wrap the cable around the reel', ['cable', 'reel']),
        ('put the Cup on the tray, then turn the cup', ['cup', 'tray']),
        (f'take the {"x" * 200}', []),
    ],
)
def test_the_things_of_an_instruction_are_found(instruction, names):
    assert things(instruction) == names


def test_after_a_step_it_asks_where_the_things_are_and_remembers_the_answers():
    answers = {'Where is the cup?': 'on the shelf.', 'Where is the shelf?': 'I do not know'}
    questions, seen = looked(DOMAIN.look((), 'put the cup on the shelf'), answers)
    assert questions == ['Where is the cup?', 'Where is the shelf?']
    assert seen.drafts == (('cup', 'object', 'cup: on the shelf'),) and seen.gone == ()


def test_query_of_the_whole_scene_asks_about_the_objects_that_changed_last():
    things_known = [(f'cup {i}', 'object', f'cup {i}: on the shelf') for i in range(20)]
    others = [
        ('task 1', 'task', 'task 1: put the cup on the shelf'),
        ('note', 'note', 'Reminder from Tuesday: buy milk'),
        ('robot', 'agent', 'robot: holds the cup'),
        ('x' * 100, 'object', 'too long a name: here'),
    ]
    questions, _ = looked(DOMAIN.look([*things_known, *others]), {})
    assert questions == [f'Where is the cup {i}?' for i in range(20 - MOST_ASKED, 20)]
    assert looked(DOMAIN.look([]), {})[0] == []


def test_query_of_the_whole_scene_asks_about_the_objects_of_the_mission_first():
    mission = 'put the Cup on the shelf, then wipe the table'
    known = [('cup', 'object', 'cup: in the sink'), ('lid', 'object', 'lid: here')]
    questions, seen = looked(DOMAIN.look(known, mission=mission), {'Where is the cup?': 'here'})
    assert questions == [f'Where is the {name}?' for name in ('cup', 'shelf', 'table', 'lid')]
    assert seen.drafts == (('cup', 'object', 'cup: here'),)
    many = [(f'cup {i}', 'object', f'cup {i}: on the shelf') for i in range(20)]
    questions, _ = looked(DOMAIN.look(many, mission=mission), {})
    assert len(questions) == MOST_ASKED and questions[0] == 'Where is the Cup?'
    questions, _ = looked(DOMAIN.look(known, 'take the lid', mission), {})
    assert questions == ['Where is the lid?']


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
    assert DOMAIN.names((id, kind, text)) == ({id} if kind == 'object' else set())


@pytest.mark.parametrize(
    'question, answer',
    [
        ('Is the drawer open?', 'yes'),
        ('Where is the cup?', ''),
        *[('Where is the cup?', answer) for answer in UNKNOWN],
        (ASKED, 'no, the cup is still here'),
        ('What do you do?', 'I reach for the cup'),
        ('Is the drawer open?', 'no, it is closed'),
        ('Subtask:', 'reach for the cup'),
    ],
)
def test_a_yes_an_unknown_and_a_narration_are_no_facts(question, answer):
    assert DOMAIN.facts_of_answer(question, answer) == []


@pytest.mark.parametrize('answer', ['yes', ' Yes. ', 'yes, it is'])
def test_yes_to_the_success_question_means_done(answer):
    assert DOMAIN.says_done(ASKED, answer)
    assert not DOMAIN.says_done(ASKED, f'no, {answer}') and not DOMAIN.says_done('Is it?', answer)
    assert not OpenDomain(Language()).says_done('', answer)


def test_long_texts_take_no_long_time():
    began = time.process_time()
    for text in ('the ' * 1000, 'the ' + 'a ' * 2000, ' ' * 4000, 'no ' * 1500, 'the a' * 800):
        things(text)
        DOMAIN.facts_of_answer('Where is the cup?', text)
        DOMAIN.facts_of_answer(text + '?', text)
    assert time.process_time() - began < 5.0


def test_a_domain_is_loaded_by_its_name():
    assert isinstance(load_domain(Language()), OpenDomain)
    assert type(load_domain(Language(domain='tabletop'))).__name__ == 'TabletopDomain'
    reason = r'language.domain must be one of open, .*tabletop.* \(got kitchen\); install'
    with pytest.raises(ValueError, match=reason):
        load_domain(Language(domain='kitchen'))


def test_a_domain_that_fails_is_named(monkeypatch):
    broken = EntryPoint('broken', 'no_such_package:Domain', GROUP)
    monkeypatch.setattr(domain, 'entry_points', lambda group: [broken])
    with pytest.raises(
        ValueError, match=r'language.domain broken must be loadable .*no_such_pack'
    ):
        load_domain(Language(domain='broken'))


def test_a_thing_is_asked_for_once_and_keeps_the_name_that_memory_has():
    known = [('Cup', 'object', 'Cup: here'), ('lid', 'object', 'lid: here')]
    questions, seen = looked(DOMAIN.look(known), {'Where is the Cup?': 'on the shelf'})
    assert questions == ['Where is the Cup?', 'Where is the lid?']
    assert seen.drafts == (('Cup', 'object', 'Cup: on the shelf'),)
    twice = [('cup', 'object', 'cup: here'), *known]
    questions, _ = looked(DOMAIN.look(twice), {})
    assert questions == ['Where is the Cup?', 'Where is the lid?']
    _, seen = looked(DOMAIN.look(known, 'take the cup'), {'Where is the cup?': 'in the sink'})
    assert seen.drafts == (('Cup', 'object', 'cup: in the sink'),)


def test_an_answer_is_stored_without_what_cannot_be_printed():
    ((_, _, text),) = DOMAIN.facts_of_answer(
        'Where is the cup?', 'on\xa0the \x07shelf\n' + 'a' * 9999
    )
    assert text.startswith('cup: on the shelf aaa') and text.isprintable() and len(text) < 1100
