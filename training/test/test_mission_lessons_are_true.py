"""A lesson's answers are those of the rules, and its labels follow from its memory."""

import re

import numpy as np
import pytest

from embodied_kv.model.planner_prompts import segment_words
from training.common.batch import EMPTY
from training.planner.corpus import planner_tokenizer, whole_corpus
from training.planner.household import OBJECT_NAMES
from training.planner.mission_cases import (
    UNKNOWN,
    case_of,
    draw_case,
    draw_moment,
    in_some_order,
    question_of,
)
from training.planner.mission_draws import draw_mission, draw_table
from training.planner.mission_lessons import LINE, LINES, MissionSampler, tokens_of
from training.planner.mission_oracle import begin, next_step
from training.planner.mission_phrases import say_mission
from training.planner.mission_rollout import roll_out
from training.planner.pages import LOCATIONS

TOKENIZER = planner_tokenizer(640, whole_corpus())


@pytest.fixture(scope='module', params=[5, 25])
def lesson(request):
    return MissionSampler(TOKENIZER).lesson(np.random.default_rng(request.param), 4, request.param)


def memory_of(lesson, b):
    """Return the sentences of a memory by their subject."""
    text = TOKENIZER.decode(lesson.memory[b, : lesson.lengths[b]].tolist())
    return dict(line.split(': ', 1) for line in text.split('\n')[1:])


def texts(lesson, b):
    for packed, segment in zip(lesson.packed[b], lesson.segment[b], strict=True):
        for s in range(int(segment.max()) + 1):
            yield TOKENIZER.decode(packed[segment == s].tolist())


def test_every_mission_can_be_said_in_words_of_one_token():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        table = draw_table(rng, 20)
        mission = draw_mission(rng, table)
        words = ''.join(say_mission(mission, rng))
        said = [segment_words(fact.text) for fact in table.facts()]
        for turn in roll_out(mission, table, rng, 0.7):
            said += [f'\nQ: {question_of(words, turn.progress)}\nA:', f' {turn.right.text}']
        for text in said:
            pieces = TOKENIZER.backend.pre_tokenizer.pre_tokenize_str(text)
            assert len(TOKENIZER.encode(text)) == len(pieces), text


def test_a_moment_asks_for_the_mission_that_came_about_first():
    rng = np.random.default_rng(4)
    table, cases = draw_moment(rng, 6)
    first, other = next(cases), next(cases)
    assert first.mission == other.mission and first.progress == other.progress
    assert next_step(first.mission, table, first.progress).text == first.truth


def test_answers_are_those_of_the_rules_but_for_words_that_nobody_knows():
    rng, garbled = np.random.default_rng(0), 0
    for _ in range(200):
        table = draw_table(rng, 8)
        case = draw_case(rng, table)
        if case.truth.endswith(UNKNOWN):
            garbled += 1
        else:
            assert case.truth == next_step(case.mission, table, case.progress).text
    assert garbled


def test_what_is_still_to_be_moved_holds_the_thing_of_the_step():
    rng = np.random.default_rng(1)
    for _ in range(100):
        table = draw_table(rng, 8)
        mission = draw_mission(rng, table)
        case = case_of(rng, table, mission, begin(table))
        step = next_step(mission, table, case.progress)
        assert step.kind != 'task' or step.task.target in case.left


def test_places_in_questions_and_facts_are_those_of_the_memory(lesson):
    width, checked = lesson.memory.shape[1], 0
    for b, threads in enumerate(lesson.threads):
        memory = memory_of(lesson, b)
        ids = [*lesson.memory[b].tolist(), *lesson.packed[b].flatten().tolist()]
        for at in (threads[:, 0] != EMPTY).nonzero().flatten().tolist():
            name = TOKENIZER.decode([ids[at]]).strip()
            if at >= width and name in OBJECT_NAMES:
                place = LOCATIONS[threads[at, 0]]
                beside = place == 'table' and re.match('next to|on the (left|right)', memory[name])
                assert beside or place in memory[name]
                checked += 1
    assert checked > 20


def test_records_know_where_things_came_from(lesson):
    for b, threads in enumerate(lesson.threads[:, : lesson.memory.shape[1]]):
        ids = lesson.memory[b].tolist()
        for at in (threads[:, 4] != EMPTY).nonzero().flatten().tolist():
            said = TOKENIZER.decode(ids[: at + 1]).split('\n')[-1]
            if said.startswith('task'):
                assert said.endswith(f'from the {LOCATIONS[threads[at, 4]]}')
                assert said.startswith(f'task {threads[at, 3] + 1}:')


def test_what_receptacles_hold_is_marked_at_their_end(lesson):
    held = 0
    for (b, at), marks in zip(lesson.meant_at.tolist(), lesson.meant, strict=True):
        if at < lesson.memory.shape[1]:
            said = TOKENIZER.decode(lesson.memory[b, : at + 1].tolist()).split('\n')[-1]
            names = {name for name, mark in zip(OBJECT_NAMES, marks, strict=True) if mark}
            assert names == {name for name in OBJECT_NAMES if f'the {name}' in said}
            held += len(names)
    assert held


def test_lines_hold_whole_questions_and_answers(lesson):
    assert lesson.packed.shape[1:] == (LINES, LINE)
    asked = [t for b in range(len(lesson.memory)) for t in texts(lesson, b) if 'Q:' in t]
    assert len(asked) == len(lesson.truths)
    assert all(re.fullmatch(r'\nQ: mission: .*; part \d.*\nA: .+', text) for text in asked)


def test_a_seed_gives_one_lesson():
    first, again = (
        MissionSampler(TOKENIZER).lesson(np.random.default_rng(3), 2, 9) for _ in range(2)
    )
    assert first.memory.equal(again.memory) and first.packed.equal(again.packed)
    assert first.meant.equal(again.meant) and first.threads.equal(again.threads)


def test_orders_hold_every_fact():
    rng = np.random.default_rng(0)
    facts = draw_table(rng, 20).facts()
    for _ in range(4):
        assert {*in_some_order(rng, facts)} == {*facts}


def test_a_lesson_is_about_as_long_as_it_is_said_to_be():
    for records in (5, 20, 40):
        made = MissionSampler(TOKENIZER).lesson(np.random.default_rng(0), 4, records)
        length = made.memory.shape[1] + made.packed[0].numel()
        assert 0.8 < length / tokens_of(records) < 1.25
