"""A prompt that is compressed after the first tokens of its answer: what stays, what is said."""

import pytest
import torch
from planning_cases import LAYERS, NUMBERS, QUESTION, filled, said
from test_a_planners_row_goes_with_its_capsule import cut_off, resumed

from embodied_kv.planning.config import PlanningConfig

MOST = NUMBERS['answer_tokens']


def test_what_keeps_all_says_the_same_bit_for_bit(tmp_path):
    with filled(tmp_path / 'a') as plain, filled(tmp_path / 'b', row_keep_ratio=1.0) as whole:
        assert said(whole.plan(QUESTION)) == said(plain.plan(QUESTION))
        for mine, theirs in zip(whole.row.arena.row(0), plain.row.arena.row(0), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize('after', [0, 1, 3])
@pytest.mark.parametrize('keep', [0.1, 0.5])
def test_the_row_holds_less_by_what_was_dropped(tmp_path, after, keep):
    numbers = dict(row_keep_ratio=keep, row_compress_after=after)
    with filled(tmp_path / 'a') as plain, filled(tmp_path / 'b', **numbers) as small:
        plain.plan(QUESTION)
        small.plan(QUESTION)
        held, whole = small.row.held, plain.row.held
        (lacks,) = set(held.absent)
        memory = small.row.arena.bytes_per_token * LAYERS
        assert held.chosen and held.tokens == whole.tokens - lacks
        assert plain.row.bytes_used - small.row.bytes_used == lacks * memory
        n = len(held.plan.prompt) - len(small._prompts.question(QUESTION))
        assert lacks == n - round(keep * n)
        assert held.plan.answer[: after + 1] == whole.plan.answer[: after + 1]
        small.row.check_integrity()


def test_what_stays_is_what_was_attended_to(tmp_path):
    """All but one token of the prompt: the rest of the answer hardly notices."""
    with filled(tmp_path / 'a') as plain, filled(tmp_path / 'b', row_keep_ratio=0.99) as small:
        plain.plan(QUESTION)
        small.plan(QUESTION)
        assert 0 < max(small.row.held.absent) <= 3
        assert small.last.answer == plain.last.answer


def test_what_a_layer_keeps_is_a_step(tmp_path):
    def steps_of(folder, **numbers):
        steps = []
        with filled(
            tmp_path / folder, step=lambda work: steps.append(work) or work(), **numbers
        ) as planning:
            planning.warm()
            steps.clear()
            planning.plan(QUESTION)
            return len(steps), len(planning._prompts.question(QUESTION))

    plain, _ = steps_of('a')
    small, question = steps_of('b', row_keep_ratio=0.5, row_compress_after=1)
    blocks = -(-(question + 1) // (PlanningConfig.step_tokens // LAYERS))
    assert small - plain == blocks + LAYERS


@pytest.mark.parametrize('tokens', [1, 2, 3, MOST])
def test_cut_off_it_goes_on_as_if_it_had_not_been(tmp_path, tokens):
    numbers = dict(row_keep_ratio=0.2, row_compress_after=1)
    planning, frozen, last = cut_off(tmp_path / 'one', tokens, **numbers)
    with planning, filled(tmp_path / 'two', **numbers) as two:
        rows = [part.clone() for part in planning.row.arena.row(0)]
        assert resumed(two, frozen) == ''
        assert set(two.plan(QUESTION).computed) == {0} and two.last == last
        for mine, theirs in zip(two.row.arena.row(0), rows, strict=True):
            assert torch.equal(mine, theirs)


def test_nothing_of_it_is_resident_for_the_next_prompt(tmp_path):
    with filled(tmp_path / 'a', row_keep_ratio=0.2, method='prefix') as planning:
        first = planning.plan(QUESTION)
        again = planning.plan(QUESTION)
        assert said(first) == said(again) and again.computed == (again.tokens,) * LAYERS
