"""KV of the planner that is not finite is neither stored nor read, and its plan is no success."""

import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from planning_cases import PLANNER, QUESTION, TABLE, open_planning

from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.planning.plan import PlanRecord, RowPlan
from embodied_kv.planning.planner_rows import Decoding, PlannerRows

METHODS = 'keep', 'full_reuse', 'full'


@contextmanager
def faulty(planning):
    """Let the first layer of the planner return NaN in the block."""
    model = planning.row._model
    layer = model.layer
    object.__setattr__(model, 'layer', lambda i, *rest: layer(i, *rest) * (math.nan if i else 1))
    try:
        yield
    finally:
        del model.layer


@pytest.fixture(params=METHODS)
def planning(request, tmp_path):
    made = open_planning(tmp_path, reuse_method=request.param)
    made.upsert(*TABLE)
    yield made
    made.close()


@pytest.fixture
def right(tmp_path):
    """Return the answer of a planner without faults."""
    made = open_planning(tmp_path / 'right', reuse_method='full')
    made.upsert(*TABLE)
    yield made.plan(QUESTION).text
    made.close()


def test_kv_that_is_not_finite_is_not_stored(planning):
    with faulty(planning), pytest.raises(RobotMemoryError, match='must be finite'):
        planning.warm()
    assert len(planning.memory.missing(planning.memory.units())) == len(planning.memory.units())


def test_stored_kv_that_is_not_finite_is_computed_again(planning, right):
    planning.warm()
    store = planning.memory.store
    for unit in planning.memory.units():
        made = planning.row.compute(unit, planning._prompts.unit(unit))
        store.store_kv(replace(made, k=made.k * math.nan))
    assert planning.plan(QUESTION).text == right  # from text: too many units are lost
    while (plan := planning.plan(QUESTION)).retries:
        assert plan.text


def test_a_plan_that_is_not_finite_fails_and_the_next_one_does_not(planning, right):
    with faulty(planning), pytest.raises((RobotMemoryError, ValueError), match='must be finite'):
        planning.plan(QUESTION)
    plan = planning.plan(QUESTION)
    assert plan.text and (planning.config.reuse_method != 'full' or plan.text == right)


def test_an_answer_that_is_not_finite_ends_and_others_go_on():
    rows = PlannerRows(PLANNER.model, 2)
    held = RowPlan(PlanRecord(QUESTION, 'full', (), (5, 6, 7), (8,)), 3)
    bad, good = (Decoding(rows.take(), held, (), 4, lambda held: None) for _ in range(2))
    with torch.inference_mode():
        rows.arena.kv[:, :, bad.row] = math.nan
    both = [rows.decode(one, lambda work: work()) for one in (good, bad)]
    next(both[0])  # both are in the batch of the following steps
    with pytest.raises(RobotMemoryError, match='must be finite'):
        [*both[1]]
    assert [*both[0]][-1].plan.over
