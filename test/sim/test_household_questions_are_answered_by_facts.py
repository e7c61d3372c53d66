"""Every answer follows from the facts that it names, and each of these is necessary."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.memory.household_traces import draw_trace
from training.planner.household import draw_household
from training.planner.household_questions import (
    KINDS,
    Question,
    all_questions,
    answer,
    draw_question,
    was,
)

PLACE = re.compile(r'(?:in|on|held by) the (.*)')


def told(texts: dict[str, str], question: str) -> str:
    """Return the answer found in the sentences alone; raise KeyError if they do not suffice."""

    def state(name):
        return texts[name].removeprefix(f'{name}: ')

    def place(name):
        return PLACE.search(state(name))[1]

    def outwards(name):
        while not name.endswith(('table', 'robot')):
            yield name
            name = place(name)

    def closed(name):
        return next((x for x in outwards(name) if state(x).startswith('closed')), None)

    if found := re.fullmatch(r'Where is the (.*)\?', question):
        return state(found[1])
    if found := re.fullmatch(r'Which table is the (.*) on\?', question):
        *_, outermost = outwards(found[1])
        return 'held by the robot' if place(outermost) == 'robot' else f'the {place(outermost)}'
    if found := re.fullmatch(r'Is the (.*) open\?', question):
        return 'yes' if state(found[1]).startswith('open') else 'no'
    if question == 'What does the robot hold?':
        return state('robot').removeprefix('holds ')
    if found := re.fullmatch(r'What was last put (?:in|on)to the (.*)\?', question):
        task = texts[f'last {found[1]}'].split(': ')[1]
        return re.search(r'put (the .*?) (in|on)to', texts[task])[1]
    x, into, y = re.fullmatch(
        r'Next step to put the (.*) ((?:in|on)to) the (.*)\?', question
    ).groups()
    if place(x) == y:
        return 'done'
    held = state('robot').removeprefix('holds the ')
    if held not in ('holds nothing', x):
        return f'put down the {held}'
    if lid := closed(x) or closed(y):
        return f'open the {lid}'
    return f'put the {x} {into} the {y}' if held == x else f'pick the {x}'


def states(seed, segments, updates=0):
    rng = np.random.default_rng(seed)
    household = draw_household(rng, segments)
    return [household, *(u.household for u in draw_trace(rng, household, updates))]


@given(st.integers(0, 10_000), st.integers(8, 50))
def test_the_facts_named_are_enough(seed, segments):
    household = states(seed, segments, 10)[-1]
    texts = {fact.id: fact.text for fact in household.facts()}
    for question in all_questions(household):
        truth = answer(question, household)
        named = {id: texts[id] for id in truth.ids}
        assert told(named, question.text) == truth.text, question


@given(st.integers(0, 1_000), st.integers(8, 30))
def test_without_a_fact_that_is_named_there_is_no_telling(seed, segments):
    household = states(seed, segments)[0]
    texts = {fact.id: fact.text for fact in household.facts()}
    for question in all_questions(household):
        for absent in answer(question, household).ids:
            named = {id: text for id, text in texts.items() if id != absent}
            with pytest.raises(KeyError):
                told(named, question.text)


def test_hops_count_the_links_that_are_followed():
    household = states(0, 60)[0]
    for question in all_questions(household):
        truth = answer(question, household)
        if question.kind in ('where', 'lid', 'held'):
            assert truth.hops == 0
        if question.kind == 'last':
            assert truth.hops == 1
        if question.kind == 'table':
            assert truth.hops == len(household.around(question.thing)) - 1
    hops = {answer(q, household).hops for q in all_questions(household) if q.kind == 'next'}
    assert hops == {0, 1, 2}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1_000), st.integers(8, 40))
def test_what_was_is_the_answer_before_the_update_that_changed_it(seed, segments):
    history = states(seed, segments, 20)
    for question in all_questions(history[-1])[:40]:
        answers = [found.text for s in history if (found := answer(question, s))]
        before = was(question, history)
        changes = [a for a, b in zip(answers, answers[1:], strict=False) if a != b]
        assert before == (changes[-1] if changes else None)
        assert before != answers[-1]


def test_what_is_not_there_has_no_answer():
    household = states(3, 20)[0]
    absent = Question('where', 'pink cube')
    assert answer(absent, household) is None
    assert was(absent, [household]) is None


def test_a_fixed_answer_is_what_it_says():
    household = draw_household(np.random.default_rng(5), 40)
    inside = next(x for x in household.objects if len(household.around(x)) == 3)
    bowl, bin, table = household.around(inside)
    truth = answer(Question('table', inside), household)
    assert (truth.text, truth.needs) == (f'the {table}', ((inside,), (bowl,), (bin,)))


@pytest.mark.parametrize('kind', KINDS)
def test_drawn_questions_are_of_their_kind_and_have_answers(kind):
    rng = np.random.default_rng(1)
    for segments in range(12, 80):
        household = draw_household(rng, segments)
        question = draw_question(rng, household, kind)
        assert question.kind == kind
        assert answer(question, household)


def test_next_steps_are_of_every_sort():
    rng, sorts = np.random.default_rng(2), set()
    for _ in range(300):
        household = draw_household(rng, 30)
        words = answer(draw_question(rng, household, 'next'), household).text
        sorts.add('put down' if words.startswith('put down') else words.split()[0])
    assert sorts == {'done', 'put down', 'open', 'put', 'pick'}
