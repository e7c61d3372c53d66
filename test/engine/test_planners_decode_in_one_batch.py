"""Rows of several robots are decoded in one batch, and each gets the answer that it gets alone."""

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import NUMBERS, PLANNER, QUESTION, TABLE, filled, open_planning

from embodied_kv.capsule import frozen_kv
from embodied_kv.capsule.capsule import FrozenPart
from embodied_kv.memory.prompt import Prompt
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.plan import PlanRecord
from embodied_kv.planning.planner_row import PlannerRow
from embodied_kv.planning.planner_rows import PlannerRows

ASKED = ('where is the red cube?', 'who holds the bin, and where?', 'what?')
LONGEST = (7, 12, 9)  # tokens of their answers


def begun(number, rows=None, step=lambda work: work(), eos=-1) -> tuple[PlannerRow, Iterator[int]]:
    """Return a robot's row, and an iterator over the tokens of its answer."""
    numbers = NUMBERS | {'max_answer_tokens': LONGEST[number]}
    row = PlannerRow(PLANNER.model, None, PlanningConfig(**numbers), step, None, rows)
    return row, saying_of(row, number, eos)


def saying_of(row, number, eos=-1) -> Iterator[int]:
    prompt = Prompt((), (), PLANNER.tokenizer.encode(ASKED[number], bos=True))
    asked = PlanRecord(ASKED[number], 'full', (), tuple(prompt.ids.tolist()))
    return row.answer(prompt, asked, {eos})[0]


def alone(number, **how):
    return list(begun(number, **how)[1])


WHOLE = [alone(number) for number in range(3)]
ENDS = {end: [alone(n, eos=end) for n in range(3)] for end in (-1, WHOLE[0][3], WHOLE[1][5])}


@settings(max_examples=10, deadline=None)
@given(
    turns=st.lists(st.integers(0, 2), max_size=40),
    eos=st.sampled_from([*ENDS]),
)
def test_whoever_asks_for_steps_each_says_what_it_says_alone(turns, eos):
    rows = PlannerRows(PLANNER.model, 3)
    decoding = [begun(number, rows, eos=eos)[1] for number in range(3)]
    said = [[], [], []]
    for number in turns:
        said[number] += [token for token in [next(decoding[number], None)] if token is not None]
    for words, rest in zip(said, decoding, strict=True):
        words += rest
    assert said == ENDS[eos]
    assert rows._decoding == []


def test_what_lies_beyond_a_plan_in_its_row_changes_no_answer():
    rows = PlannerRows(PLANNER.model, 3)
    robots = [begun(number, rows)[0] for number in range(3)]
    rows.arena.kv[:, :, :, :, 1:] = math.nan  # stale content behind the first token
    decoding = [saying_of(row, number) for number, row in enumerate(robots)]
    said = [[], [], []]
    for _ in range(max(LONGEST)):
        for words, rest in zip(said, decoding, strict=True):
            words += [token for token in [next(rest, None)] if token is not None]
    assert said == WHOLE


def test_a_step_takes_all_that_say_a_token_further():
    rows = PlannerRows(PLANNER.model, 3)
    robots = [begun(number, rows) for number in (0, 2)]
    for _, decoding in robots:
        next(decoding), next(decoding)  # the first token comes from the prefill
    before = [len(row.held.plan.answer) for row, _ in robots]
    assert rows.steps == 2 and rows.tokens == 3
    next(robots[0][1])
    assert rows.steps == 3 and rows.tokens == 5
    assert [len(row.held.plan.answer) for row, _ in robots] == [n + 1 for n in before]


def test_answers_that_begin_together_take_as_many_steps_as_the_longest():
    rows, until = PlannerRows(PLANNER.model, 3), time.monotonic() + 60

    def step(work):
        while work == rows._advance and not rows.steps and len(rows._decoding) < 2:
            assert time.monotonic() < until, 'they did not begin'
            time.sleep(0.001)
        return device.submit(work).result()

    with ThreadPoolExecutor(1) as device, ThreadPoolExecutor(2) as robots:
        said = list(robots.map(lambda number: alone(number, rows=rows, step=step), (0, 2)))
    assert said == [WHOLE[0], WHOLE[2]]
    assert rows.steps == max(map(len, said)) - 1 and rows.tokens == sum(map(len, said)) - 2


def test_a_row_that_does_not_speak_stays_as_it_is():
    rows = PlannerRows(PLANNER.model, 3)
    mute, whole = begun(0, rows)[0], begun(2, rows)
    before = [part.clone() for part in mute.arena.row(0)]
    list(whole[1])
    for mine, was in zip(mute.arena.row(0), before, strict=True):
        assert torch.equal(mine, was)


def test_a_robot_that_goes_amid_its_answer_harms_no_other():
    rows = PlannerRows(PLANNER.model, 2)
    (gone, leaving), (_, staying) = begun(0, rows), begun(2, rows)
    said = [next(staying), next(staying)]
    next(leaving), next(leaving)
    leaving.close()
    gone.close()
    rows.check_integrity()
    (_, coming) = begun(1, rows)
    assert list(coming) == WHOLE[1] and said + list(staying) == WHOLE[2]


def test_an_answer_that_is_frozen_in_a_batch_goes_on_elsewhere():
    rows = PlannerRows(PLANNER.model, 3)
    (row, decoding), (_, other) = begun(0, rows), begun(2, rows)
    next(decoding), next(decoding), next(other), next(other), next(other)
    held, (k, v) = row.held, row.arena.row(0)
    frozen = FrozenPart(frozen_kv.copied('row', k[:, :, : held.tokens], v[:, :, : held.tokens]))
    elsewhere, _ = begun(0, rows)
    assert elsewhere.resume(lambda: frozen_kv.fill(frozen, 'row', elsewhere.arena, 0), held)
    prompt = Prompt((), (), list(held.plan.prompt))
    said, work = elsewhere.answer(prompt, held.plan.asked, ())
    assert list(said) == WHOLE[0] and max(work.computed) == 0


def test_plans_of_many_robots_equal_those_of_each_alone(tmp_path):
    with filled(tmp_path / 'alone') as planning:
        expected = planning.plan(QUESTION, method='full').text
    rows = PlannerRows(PLANNER.model, 4)
    with ThreadPoolExecutor(1) as device, ThreadPoolExecutor(4) as robots:

        def planned(number):
            step = lambda work: device.submit(work).result()  # noqa: E731
            folder = tmp_path / f'robot {number}'
            with open_planning(folder, step=step, rows=rows) as planning:
                planning.upsert(*TABLE)
                return planning.plan(QUESTION, method='full').text

        assert list(robots.map(planned, range(8))) == [expected] * 8
    rows.check_integrity()
    assert rows.bytes == rows.arena.bytes


def test_a_row_that_was_anothers_is_empty(tmp_path):
    rows = PlannerRows(PLANNER.model, 1)
    with filled(tmp_path / 'one', rows=rows) as planning:
        planning.plan(QUESTION, method='prefix')
    with open_planning(tmp_path / 'two', rows=rows) as other:
        assert other.row.bytes_used == 0 and other.row.held is None
        plan = other.plan(QUESTION, method='prefix')
        assert plan.computed == (plan.tokens,) * 4


def test_where_no_row_is_left_nothing_is_opened(tmp_path):
    rows = PlannerRows(PLANNER.model, 1)
    with open_planning(tmp_path / 'one', rows=rows):
        with pytest.raises(ValueError, match='planners must be at most 1; raise planner_rows'):
            open_planning(tmp_path / 'two', rows=rows)
    open_planning(tmp_path / 'two', rows=rows).close()


def test_what_was_offered_of_a_row_that_was_given_back_takes_nothing_from_the_next():
    rows = PlannerRows(PLANNER.model, 1)
    before, decoding = begun(0, rows)
    with before.in_use():
        assert list(decoding) == WHOLE[0]
    (offer,) = before.evictable()
    before.close()
    after, decoding = begun(2, rows)
    with after.in_use():
        said = [next(decoding), next(decoding)]
        assert offer.evict() == 0 and not before.evictable()
        assert said + list(decoding) == WHOLE[2]
    assert offer.evict() == 0 and after.bytes_used
