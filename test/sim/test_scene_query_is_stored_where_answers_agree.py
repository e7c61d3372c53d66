"""A scene query asks about each fact twice, so that one wrong answer changes no known fact."""

import pytest

from embodied_kv.demo.domain import TabletopDomain
from embodied_kv.demo.sim.language import COUNT, HELD, SHAPES, in_or_on
from embodied_kv.demo.sim.scene_queries import query_table, query_target
from embodied_kv.demo.sim.table_memory import TABLE
from training.planner.simulated_table import SimulatedTable

DOMAIN = TabletopDomain()

KNOWN = SimulatedTable(
    {'red cube': TABLE, 'blue cylinder': 'green bin'}, ('green bin', 'cyan plate')
)
TRUE = {
    'Where is the red cube?': 'on the table',
    'Where is the blue cylinder?': 'in the green bin',
    'What is in the green bin?': 'the blue cylinder',
    'What is on the cyan plate?': 'nothing',
    HELD: 'nothing',
    COUNT: '2',
    'What shape is the red thing?': 'cube',
    'What shape is the blue thing?': 'cylinder',
    'What shape is the green thing?': 'bin',
    'What shape is the cyan thing?': 'plate',
}
COLOURS = {'red', 'blue', 'green', 'cyan'}


def seen(look, **wrong):
    """Return the facts and the missing things that a scene query finds.

    wrong: `answers` by question that differ from TRUE, `colours` that are seen, and `exists`:
    whether a thing is seen, by question, else by its colour.
    """
    answers = TRUE | wrong.get('answers', {})
    colours, exists = wrong.get('colours', COLOURS), wrong.get('exists', {})
    try:
        questions = next(look)
        while True:
            questions = look.send(
                [
                    ('yes' if exists.get(q, set(q.split()) & colours) else 'no')
                    if q.startswith('Do you see')
                    else answers[q]
                    for q in questions
                ]
            )
    except StopIteration as over:
        return {id: text for id, _, text in over.value.drafts}, over.value.gone


FACTS = {
    'red cube': 'red cube: on the table',
    'blue cylinder': 'blue cylinder: in the green bin',
    'green bin': 'green bin: holds the blue cylinder',
    'cyan plate': 'cyan plate: holds nothing',
    'robot': 'robot: holds nothing',
}


def test_a_table_of_which_nothing_is_known_is_found():
    assert seen(query_table(SimulatedTable({}, ()))) == (FACTS, ())


def asked(look, colours=COLOURS):
    """Return all questions of a scene query."""
    noted = []

    def noting():
        questions = next(look)
        while True:
            noted.extend(questions)
            try:
                questions = look.send((yield questions))
            except StopIteration as over:
                return over.value

    seen(noting(), colours=colours)
    return noted


def test_things_are_counted_only_where_one_is_missed():
    assert COUNT not in asked(query_target('put the red cube into the green bin', KNOWN))
    assert COUNT not in asked(query_table(KNOWN))
    assert COUNT in asked(query_table(KNOWN), COLOURS - {'red'})


def test_a_place_that_is_a_target_is_queried_once():
    looked = asked(query_target('pick up the green bin', KNOWN))
    assert len(looked) == len(set(looked)) and 'What is in the green bin?' in looked
    facts, _ = seen(query_target('pick up the green bin', KNOWN))
    ids = [id for id, *_ in facts]
    assert len(ids) == len(set(ids))


def test_what_is_known_is_confirmed():
    assert seen(query_table(KNOWN)) == (FACTS, ())


@pytest.mark.parametrize(
    'answers',
    [
        {'Where is the red cube?': 'on the cyan plate'},
        {'Where is the blue cylinder?': 'on the table'},
        {'What is in the green bin?': 'nothing'},
        {'What is on the cyan plate?': 'the red cube'},
        {HELD: 'the red cube'},
        {'Where is the red cube?': 'yes'},
    ],
)
def test_one_mistake_changes_nothing_that_was_known(answers):
    for look in (query_table(KNOWN), query_target('pick up the red cube', KNOWN)):
        found, gone = seen(look, answers=answers)
        assert FACTS | found == FACTS and not gone


def test_two_answers_that_agree_do():
    moved = {
        'Where is the red cube?': 'on the cyan plate',
        'What is on the cyan plate?': 'the red cube',
    }
    found, _ = seen(query_target('put the red cube on the cyan plate', KNOWN), answers=moved)
    assert found['red cube'] == 'red cube: on the cyan plate'
    assert found['cyan plate'] == 'cyan plate: holds the red cube'
    held = {'Where is the blue cylinder?': 'held by the robot', HELD: 'the blue cylinder'}
    held['What is in the green bin?'] = 'nothing'
    found, _ = seen(query_target('pick up the blue cylinder', KNOWN), answers=held)
    assert found['robot'] == 'robot: holds the blue cylinder'
    assert found['green bin'] == 'green bin: holds nothing'


def test_a_colour_that_nobody_sees_or_names_is_gone():
    empty = {'What is in the green bin?': 'nothing', COUNT: '1'}
    found, gone = seen(query_table(KNOWN), colours=COLOURS - {'blue'}, answers=empty)
    assert gone == ('blue cylinder',) and 'blue cylinder' not in found
    assert found['green bin'] == 'green bin: holds nothing'


def test_nothing_is_gone_while_as_many_are_counted():
    empty = {'What is in the green bin?': 'nothing'}
    found, gone = seen(query_table(KNOWN), colours=COLOURS - {'blue'}, answers=empty)
    assert not gone and FACTS | found == FACTS


@pytest.mark.parametrize('missed', [('blue', 'blue cylinder'), ('green', 'green bin')])
def test_a_colour_that_is_not_seen_stays_where_an_answer_names_it(missed):
    colour, name = missed
    found, gone = seen(query_table(KNOWN), colours=COLOURS - {colour})
    assert not gone and found[name] == FACTS[name]


@pytest.mark.parametrize(
    'answers',
    [
        {'What is in the green bin?': 'the blue cube'},
        {'Where is the blue cylinder?': 'on the green plate'},
        {HELD: 'nothing', 'What is in the green bin?': 'the blue cube and the blue cylinder'},
    ],
)
def test_a_colour_is_enough_to_agree_where_only_one_thing_has_it(answers):
    (red, blue), places = KNOWN.where, KNOWN.places
    lost = SimulatedTable({red: TABLE, blue: TABLE}, places)
    assert (
        seen(query_target('pick up the blue cylinder', lost), answers=answers)[0][blue]
        == FACTS[blue]
    )


def test_two_things_of_a_colour_are_told_apart_by_their_whole_names():
    twins = SimulatedTable({'blue cube': TABLE, 'blue cylinder': TABLE}, KNOWN.places)
    answers = {'What is in the green bin?': 'the blue cube'}
    found, _ = seen(query_target('pick up the blue cylinder', twins), answers=answers)
    assert 'blue cylinder' not in found


def test_a_place_that_nobody_knows_is_no_place():
    answers = {'Where is the red cube?': 'on the purple plate'}
    found, _ = seen(query_table(KNOWN), answers=answers)
    assert 'red cube' not in found


def test_what_is_new_is_believed_where_answers_agree():
    known = SimulatedTable({'red cube': TABLE}, KNOWN.places)
    assert seen(query_table(known)) == (FACTS, ())
    lies = {'What is in the green bin?': 'the red cylinder'}
    assert 'blue cylinder' not in seen(query_table(known), answers=lies)[0]


def test_a_known_thing_keeps_its_name_whatever_shape_is_said():
    found, _ = seen(query_table(KNOWN), answers={'What shape is the red thing?': 'cylinder'})
    assert found['red cube'] == FACTS['red cube']


def test_what_is_no_place_is_not_learnt():
    assert (
        DOMAIN.facts_of_answer('Where is the red cube?', 'yes')
        == []
        == DOMAIN.facts_of_answer('Is it done?', 'yes')
    )
    assert (
        DOMAIN.facts_of_answer(HELD, ' ')
        == []
        == DOMAIN.facts_of_answer('What is in the green bin?', '')
    )


def test_what_is_next_to_something_stays_so_while_it_lies_on_the_table():
    lying = SimulatedTable(KNOWN.where, KNOWN.places, {'red cube': 'next to the cyan plate'})
    assert 'red cube' not in seen(query_table(lying))[0]
    drafts = [('red cube', 'object', 'red cube: next to the cyan plate')]
    assert DOMAIN.facts_of_step('put the red cube beside the cyan plate') == drafts
    assert DOMAIN.facts_of_step('push the red cube to the left') == [
        ('red cube', 'object', 'red cube: on the left')
    ]
    assert (
        DOMAIN.facts_of_step('pick up the red cube') == [] == DOMAIN.facts_of_step('what is this?')
    )


def test_what_was_held_is_looked_for_after_a_step_about_another_thing():
    known = SimulatedTable({'red cube': 'robot', 'blue cylinder': TABLE}, ('green bin',))
    look = query_target('put the blue cylinder into the green bin', known)
    facts, gone = seen(look)
    assert facts['red cube'] == 'red cube: on the table' and not gone
    assert facts['robot'] == 'robot: holds nothing'
    assert facts['green bin'] == 'green bin: holds the blue cylinder'


def names_found(mission='', **wrong):
    """Return the names of the things of a table of which nothing is known."""
    facts, _ = seen(query_table(SimulatedTable({}, ()), mission), **wrong)
    return {*facts} - {'robot'}


def answers_about_cyan(stated, *shapes):
    """Return answers that state a shape of the cyan thing, and that it is seen as some shapes."""
    exists = {f'Do you see the cyan {shape}?': shape in shapes for shape in SHAPES}
    return {'What shape is the cyan thing?': stated}, exists


@pytest.mark.parametrize(
    'stated, shapes, mission, name',
    [
        ('plate', SHAPES, '', 'cyan plate'),
        ('cube', ['plate'], '', 'cyan cube'),  # one answer each: the stated shape
        ('cube', ['plate'], 'put the red cube onto the cyan plate', 'cyan plate'),
        ('cube', SHAPES, 'put the red cube onto the cyan plate', 'cyan plate'),
        ('plate', ['plate'], 'put the cyan cube into the green bin', 'cyan plate'),
        ('sofa', ['plate'], '', 'cyan plate'),
    ],
)
def test_two_answers_and_a_name_in_the_mission_vote_for_a_shape(stated, shapes, mission, name):
    answers, exists = answers_about_cyan(stated, *shapes)
    answers |= {f'Where is the {name}?': 'on the table'}
    answers |= {f'What is {in_or_on(name)} the {name}?': 'nothing'}
    assert name in names_found(mission, answers=answers, exists=exists)
