"""A lesson's tokens agree with its households, and each label follows from the words before it."""

import re

import numpy as np
import pytest

from training.common.batch import EMPTY
from training.planner.corpus import NAMES, planner_tokenizer, whole_corpus
from training.planner.household import draw_household
from training.planner.household_questions import all_questions, answer
from training.planner.lessons import LessonSampler, in_some_order, tokens_of
from training.planner.pages import ENDS, LIDS, LOCATIONS, THREADS

TOKENIZER = planner_tokenizer(640, whole_corpus())


@pytest.fixture(scope='module', params=[8, 30, 80])
def lesson(request):
    return LessonSampler(TOKENIZER).lesson(np.random.default_rng(request.param), 6, request.param)


def pages(lesson):
    """Yield memory's sentences, and pairs of question and answer, of each prompt."""
    for b, length in enumerate(lesson.lengths):
        head, *facts = TOKENIZER.decode(lesson.memory[b, :length].tolist()).split('\n')
        assert head == 'Memory:'
        lines = zip(lesson.packed[b], lesson.segment[b], strict=True)
        texts = [
            TOKENIZER.decode(packed[segment == s].tolist())
            for packed, segment in lines
            for s in range(int(segment.max()) + 1)
        ]
        asked = [text for text in texts if text.startswith('\nQ')]
        alone = {text.strip() for text in texts if text not in asked}
        notes = {fact.split(':')[0] for fact in facts if fact.startswith('last')}
        alone -= {note.replace('last', 'last put') for note in notes}
        assert all(text in NAMES or text.isdecimal() for text in alone)
        yield facts, [re.fullmatch(r'\nQ: (.*)\nA: (.*)', text).groups() for text in asked]


def test_every_word_is_one_token():
    for text in whole_corpus():
        words = len(TOKENIZER.backend.pre_tokenizer.pre_tokenize_str(text))
        assert len(TOKENIZER.encode(text)) == words
        assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_a_vocabulary_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match='300 tokens do not hold bytes and words, 453 would'):
        planner_tokenizer(300)


def test_every_household_can_be_said_in_words_of_one_token():
    rng = np.random.default_rng(0)
    for _ in range(20):
        household = draw_household(rng, 80)
        texts = [fact.text for fact in household.facts()]
        for question in all_questions(household)[:200]:
            texts += [question.text, answer(question, household).text]
        for text in texts:
            words = TOKENIZER.backend.pre_tokenizer.pre_tokenize_str(f' {text}')
            assert len(TOKENIZER.encode(f' {text}')) == len(words), text


def test_answers_are_true_of_the_memory_in_view(lesson):
    number = 0
    for facts, asked in pages(lesson):
        place = dict(re.fullmatch(r'(.*?): (.*)', fact).groups() for fact in facts)
        for question, said in asked:
            number += 1
            if found := re.fullmatch(r'Where is the (.*)\?', question):
                assert place[found[1]] == said
            if found := re.fullmatch(r'Is the (.*) open\?', question):
                assert place[found[1]].startswith('open') == (said == 'yes')
            if found := re.fullmatch(r'Which table is the (.*) on\?', question):
                name = found[1]
                while not name.endswith(('table', 'robot')):
                    name = re.search(r'(?:in|on|by) the (.*)', place[name])[1]
                assert said == ('held by the robot' if name == 'robot' else f'the {name}')
    assert number == len(lesson.truths)


def test_what_is_learnt_is_the_answer_and_its_end_one_token_ahead(lesson):
    said = (lesson.answer != EMPTY).nonzero().tolist()
    following = 0
    for b, n, t in said:
        wanted = int(lesson.answer[b, n, t])
        if wanted != TOKENIZER.eos:
            assert lesson.packed[b, n, t + 1] == wanted
            assert lesson.segment[b, n, t + 1] == lesson.segment[b, n, t]
            following += 1
    assert len(said) - following == len(lesson.truths)


def follow(states, name):
    """Return place, end and lid of a thing, as far as the sentences state them, else None."""
    if name not in states:
        return None, None, None
    place = re.search(r'(?:in|on|by) the (.*)', states[name])[1]
    if states[name].startswith('closed'):
        return place, place, name
    if place.endswith(('table', 'robot')):
        return place, place, 'none'
    return place, *follow(states, place)[1:]


def leads(states, name):
    """Return the entries of `Lesson.threads` in words."""
    if name == 'robot':
        held = states.get(name, '').removeprefix('holds ').removeprefix('the ')
        return None, 'robot' if held == 'nothing' else held or None, None
    if name.startswith('last'):  # the note's place, the object of its task
        return name.split(' the ')[1], leads(states, states[name])[1], None
    if name.startswith('task'):
        put = re.search(r'put the (.*?) (?:in|on)to the (.*)', states.get(name, ''))
        return (put[2], put[1], None) if put else (None, None, None)
    return follow(states, name)


def labels(states, name):
    """Return the `Lesson.threads` of a thing, or of the fact that begins with this name."""
    thread = leads(states, name)
    task = states.get(name, '') if name.startswith('last') else name
    number = int(task.split()[1]) - 1 if task.startswith('task') and name in states else EMPTY
    found = zip((LOCATIONS, ENDS, LIDS), thread, strict=True)
    known = [EMPTY if word is None else words.index(word) for words, word in found]
    return [*known, number, EMPTY, EMPTY]


def test_threads_lead_where_the_sentences_before_lead(lesson):
    for b, length in enumerate(lesson.lengths):
        ids, states, wanted = lesson.memory[b, :length].tolist(), {}, {}
        starts = [i for i, id in enumerate(ids) if TOKENIZER.decode([id]) == '\n'] + [len(ids)]
        for start, end in zip(starts, starts[1:], strict=False):
            name, state = TOKENIZER.decode(ids[start:end]).strip().split(': ')
            if name.startswith('task'):
                for at in range(start, end - 1):
                    if (named := TOKENIZER.decode([ids[at]]).strip()) in NAMES:
                        wanted[at] = labels(states, named)
            states[name] = state
            wanted[end - 1] = labels(states, name)
        for at, thread in enumerate(lesson.threads[b, : lesson.memory.shape[1]].tolist()):
            assert thread == wanted.get(at, [EMPTY] * len(THREADS))


def test_threads_of_a_question_are_those_of_its_names(lesson):
    width = lesson.memory.shape[1]
    for b, (facts, _) in enumerate(pages(lesson)):
        states = dict(fact.split(': ') for fact in facts)
        packed, threads = lesson.packed[b].flatten().tolist(), lesson.threads[b, width:].tolist()
        for at, thread in enumerate(threads):
            if thread == [EMPTY] * len(THREADS):
                continue
            said, name = TOKENIZER.decode(packed[: at + 1]), TOKENIZER.decode([packed[at]]).strip()
            if found := re.search(r'last put ((?:in|on)to the \w+ \w+)(\?\nA:)?$', said):
                name = f'last {found[1]}'
            elif name == ':':  # a question without a name
                name = 'robot'
            elif name.isdecimal():
                name = f'task {name}'
            assert thread == labels(states, name)


def test_a_seed_gives_one_lesson():
    first, again = (
        LessonSampler(TOKENIZER).lesson(np.random.default_rng(3), 2, 20) for _ in range(2)
    )
    assert first.memory.equal(again.memory) and first.packed.equal(again.packed)


def test_orders_hold_every_fact():
    rng = np.random.default_rng(0)
    for segments in range(8, 81, 12):
        household = draw_household(rng, segments)
        assert {*in_some_order(rng, household)} == {*household.facts()}


def test_a_lesson_is_about_as_long_as_it_is_said_to_be():
    for segments in (10, 40, 80):
        lesson = LessonSampler(TOKENIZER).lesson(np.random.default_rng(0), 4, segments)
        length = lesson.memory.shape[1] + lesson.packed[0].numel()
        assert 0.8 < length / tokens_of(segments) < 1.25
