"""A record's values are in the prompt or refer to earlier records; alone these are unknown."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.model.planner import Planner
from training.judge.lessons import read
from training.records.gate import Gate, gate, rates
from training.records.lessons import attribute_places, batch_of, draw_batch, view_of
from training.records.records import (
    ASK,
    ASKED,
    ATTRIBUTES,
    DITTO,
    DITTOS,
    LIKE,
    MAX_LINKS,
    NOBODY,
    SEGMENTS,
    TOKENS,
    VALUE,
    VALUES,
    VOCABULARY,
    draw_questions,
    draw_records,
)
from training.records.trainer import RECORDS, init_small


def meaning(tokens, s, k):
    """Return the value found by reading the prompt, and how many dittos led there."""
    record = tokens[1 + TOKENS * s : 1 + TOKENS * (s + 1)]
    said = int(record[2 + k])
    if said != DITTO + k:
        return said, 0
    wanted = int(record[1]) - LIKE
    names = tokens[1::TOKENS].tolist()
    found, links = meaning(tokens, names.index(wanted), k)
    return found, links + 1


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(*SEGMENTS))
def test_values_are_what_the_prompt_says(seed, segments):
    records = draw_records(np.random.default_rng(seed), 2, segments)
    for row, tokens in enumerate(records.memory):
        assert len(tokens) == 1 + TOKENS * segments and tokens[2] == NOBODY
        for s in range(segments):
            assert records.like[row, s] < s, 'an antecedent stands earlier'
            dittos = (records.said[row, s] >= DITTO).sum()
            assert dittos <= DITTOS and (s or not dittos)
            for k in range(ATTRIBUTES):
                value, links = meaning(tokens, s, k)
                assert (value, links) == (records.values[row, s, k], records.links[row, s, k])
                assert links <= MAX_LINKS and 0 <= value - VALUE - VALUES * k < VALUES


def test_a_quarter_of_questions_hang_on_another_record():
    rng = np.random.default_rng(0)
    records = draw_records(rng, 2000, 20)
    attribute, asked = draw_questions(rng, records, 1)
    links = records.links[np.arange(2000), asked[:, 0], attribute]
    assert abs((links > 0).mean() - ASKED) < 0.04
    for wanted in range(MAX_LINKS + 1):
        attribute, asked = draw_questions(rng, records, 1, wanted)
        links = records.links[np.arange(2000), asked[:, 0], attribute]
        assert (links == wanted).mean() > 0.8, 'where there is one'


def test_a_batch_is_its_prompts_and_what_is_to_be_known():
    batch = draw_batch(np.random.default_rng(1), 3, 5, 4)
    assert batch.ids.shape == (3, 2 + TOKENS * 5 + 4) and int(batch.ids.max()) < VOCABULARY
    assert ((batch.ids[:, 1 + TOKENS * 5] - ASK) < ATTRIBUTES).all()
    said = batch.ids[:, attribute_places(5)]
    plain = said < DITTO
    assert torch.equal(said[plain], batch.value[plain])
    assert (batch.like[:, :ATTRIBUTES] < 0).all() and (batch.like[:, ATTRIBUTES:] >= 0).all()


@pytest.mark.parametrize('segments', [3, 31])
def test_prompts_that_cannot_be_are_refused(segments):
    with pytest.raises(ValueError, match='a prompt has 4 to 30'):
        draw_records(np.random.default_rng(0), 1, segments)


def test_the_longest_prompt_fits_the_row():
    assert 3 + TOKENS * SEGMENTS[1] <= RECORDS.max_tokens <= 256
    assert 8 <= RECORDS.backbone.layers <= 10


def test_apart_a_record_changes_nothing_of_another():
    torch.set_num_threads(1)
    model = Planner(RECORDS).requires_grad_(False)
    init_small(model, 0)
    records = draw_records(np.random.default_rng(2), 1, 6)
    batch = batch_of(records, np.array([0]), np.array([[5]]))
    other = batch.ids.clone()
    other[0, 1 + 2] = VALUE + (int(other[0, 3]) - VALUE + 1) % VALUES  # a0 of the first record
    last = slice(1 + TOKENS * 5, 1 + TOKENS * 6)
    for isolated in (False, True):
        view = view_of(6, 1, isolated)
        one, two = (read(model, ids, view)[-1][:, last] for ids in (batch.ids, other))
        assert torch.equal(one, two) == isolated


def test_the_gate_wants_both():
    assert Gate(0.97, 0.75, 9, {}).holds and Gate(0.97, 0.75, 9, {}).said()['holds']
    assert not Gate(0.90, 0.70, 9, {}).holds, 'not right in full'
    assert not Gate(0.99, 0.95, 9, {}).holds, 'reuse costs nothing'
    assert not Gate(0.99, 0.40, 9, {}).holds, 'reuse costs nearly all'


def test_a_model_that_knows_nothing_does_not_pass(monkeypatch):
    torch.set_num_threads(1)
    model = Planner(RECORDS).requires_grad_(False)
    init_small(model, 0)
    monkeypatch.setattr('training.records.gate.SIZES', (5,))
    found = gate(model, 8, 0)
    assert not found.holds and set(found.by_links) == set(range(MAX_LINKS + 1))
    assert (found.full, found.reuse) == rates(model, 8, 0)
