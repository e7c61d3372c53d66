"""A plan that recomputes all segments equals full recomputation of its text, bit for bit."""

import pytest
import torch
from planning_cases import LAYERS, QUESTION, filled

METHODS = ('keep', 'full', 'prefix', 'full_reuse')


def row(planning, plan):
    """Return K and V of the prompt."""
    arena = planning.row.arena
    return [part[:, 0, :, : plan.tokens].clone() for part in (arena.k, arena.v)]


def test_all_recomputed_equals_full(tmp_path):
    with filled(tmp_path, recompute_ratio=1.0) as planning:
        full = planning.plan(QUESTION, method='full')
        wanted = row(planning, full)
        plan = planning.plan(QUESTION)
        assert all(map(torch.equal, row(planning, plan), wanted))
        assert (plan.text, plan.segments) == (full.text, full.segments)
        assert plan.computed == full.computed == (full.tokens,) * LAYERS
        assert not any(plan.loaded) and plan.computed_share == 1.0


def test_a_group_that_was_computed_jointly_needs_nothing_again(tmp_path):
    """One static group follows the head, so its stored KV lacks nothing but the head."""
    with filled(tmp_path, min_group_similarity=-1.0) as planning:
        planning.advance(2)
        full, reuse = (planning.plan(QUESTION, method=m) for m in ('full', 'full_reuse'))
        assert reuse.fresh == 1 and len(reuse.segments) == 5
        assert reuse.loaded == (full.memory,) * LAYERS
        assert reuse.computed == (full.tokens - full.memory,) * LAYERS


def test_keep_computes_the_scheduled_share(tmp_path):
    with filled(tmp_path) as planning:
        plan = planning.plan(QUESTION)
        assert plan.method == 'keep' and plan.computed[0] == plan.tokens
        assert list(plan.computed) == sorted(plan.computed, reverse=True)
        assert plan.computed[-1] < plan.tokens and plan.loaded[0] == 0 < plan.loaded[-1]
        for computed, loaded in zip(plan.computed, plan.loaded, strict=True):
            assert computed + loaded == plan.tokens
        assert len(plan.hops) == LAYERS - 1 and all(plan.hops)
        assert 0 < plan.seconds_fresh < plan.seconds_first_token <= plan.seconds


@pytest.mark.parametrize('method', METHODS)
def test_every_method_plans_the_same_in_another_memory(tmp_path, method):
    with filled(tmp_path / 'a') as planning:
        wanted = planning.plan(QUESTION, method=method)
        rows = row(planning, wanted)
    with filled(tmp_path / 'b') as planning:
        plan = planning.plan(QUESTION, method=method)
        assert all(map(torch.equal, row(planning, plan), rows))
    assert (plan.text, plan.computed, plan.loaded) == (wanted.text, wanted.computed, wanted.loaded)


def test_a_prefix_counts_while_the_row_still_holds_it(tmp_path):
    with filled(tmp_path) as planning:
        cold = planning.plan(QUESTION, method='prefix')
        again = planning.plan(QUESTION, method='prefix')
        assert cold.computed == (cold.tokens,) * LAYERS and again.computed == (1,) * LAYERS
        assert again.text == cold.text
        planning.plan(QUESTION, method='full_reuse')  # fills the row by another method
        after = planning.plan(QUESTION, method='prefix')
        assert (after.computed, after.text) == (cold.computed, cold.text)
        planning.upsert(('mug', 'object', 'mug: on the right table'))
        planning.warm()  # computes a unit in the row
        changed = planning.plan(QUESTION, method='prefix')
        assert changed.computed == (changed.tokens,) * LAYERS


def test_full_and_prefix_ask_for_no_stored_kv(tmp_path):
    with filled(tmp_path) as planning:
        assert planning.plan(QUESTION, method='full').fresh == 0
        assert planning.plan(QUESTION, method='prefix').fresh == 0
        assert planning.stats().kept == 0
