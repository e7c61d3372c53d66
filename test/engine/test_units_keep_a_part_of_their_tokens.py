"""Stored KV of which a part is kept: less bytes by what was dropped, and plans that stay whole."""

import pytest
import torch
from planning_cases import LAYERS, QUESTION, TABLE, filled, open_planning, said
from test_a_planners_row_goes_with_its_capsule import cut_off, resumed

METHODS = ['knorm', 'h2o', 'zipcache', 'streaming_llm', 'random']


def test_what_drops_nothing_answers_bit_for_bit(tmp_path):
    same = dict(unit_keep_ratio=0.5, unit_compress='full')  # all of it, by the way of a part
    for method in ('keep', 'full_reuse'):
        with filled(tmp_path / f'{method}a', method=method) as plain:
            with filled(tmp_path / f'{method}b', method=method, **same) as whole:
                assert said(whole.plan(QUESTION)) == said(plain.plan(QUESTION))
                assert torch.equal(whole.row.arena.k, plain.row.arena.k)
                assert whole.stats().bytes == plain.stats().bytes


@pytest.mark.parametrize('name', METHODS)
@pytest.mark.parametrize('keep', [0.2, 0.5])
def test_bytes_go_down_by_what_was_dropped(tmp_path, name, keep):
    numbers = dict(unit_keep_ratio=keep, unit_compress=name, method='full_reuse')
    with filled(tmp_path / 'a', method='full_reuse') as plain:
        with filled(tmp_path / 'b', **numbers) as thin:
            plain.plan(QUESTION)
            plan = thin.plan(QUESTION)
            counts = [len(thin._prompts.segment(text)) for _, _, text in TABLE]
            kept = [max(1, round(keep * count)) for count in counts]
            token = thin.row.arena.bytes_per_token * LAYERS
            dropped = (sum(counts) - sum(kept)) * token
            assert plain.stats().bytes - thin.stats().bytes == dropped > 0
            assert plain.stats().cached_bytes - thin.stats().cached_bytes == dropped
            assert plain.row.bytes_used - thin.row.bytes_used == dropped
            assert plan.loaded == (sum(kept),) * LAYERS and plan.memory == sum(counts)
            for pool in thin.pools:
                pool.check_integrity()


def test_the_row_is_as_long_as_its_longest_layer(tmp_path):
    """KEEP computes all of memory in the first one."""
    with filled(tmp_path / 'a') as plain, filled(tmp_path / 'b', unit_keep_ratio=0.3) as thin:
        plans = [planning.plan(QUESTION) for planning in (plain, thin)]
        assert plain.row.bytes_used == thin.row.bytes_used
        assert plain.stats().bytes > thin.stats().bytes
        assert sum(plans[0].loaded) > sum(plans[1].loaded) > 0


def test_what_is_kept_is_chosen_in_a_step(tmp_path):
    steps = []
    counts = []
    for keep in (1.0, 0.3):
        with filled(
            tmp_path / str(keep),
            step=lambda work: steps.append(work) or work(),
            unit_keep_ratio=keep,
        ) as planning:
            steps.clear()
            planning.warm(1)
            counts.append(len(steps))
    assert counts[1] == counts[0] + 1


def test_what_is_computed_again_is_whole(tmp_path):
    numbers = dict(recompute_ratio=1.0, unit_keep_ratio=0.3)
    with filled(tmp_path, **numbers) as planning:
        full = planning.plan(QUESTION, method='full')
        rows = [part.clone() for part in planning.row.arena.row(0)]
        plan = planning.plan(QUESTION)
        assert plan.text == full.text and plan.computed == full.computed
        for mine, theirs in zip(planning.row.arena.row(0), rows, strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize('method', ['cacheblend', 'epic'])
def test_a_method_that_needs_whole_units_computes_thin_ones(tmp_path, method):
    with filled(tmp_path, unit_keep_ratio=0.3) as planning:
        plan, full = (planning.plan(QUESTION, method=m) for m in (method, 'full'))
        assert (plan.text, plan.computed) == (full.text, full.computed)


def test_each_unit_is_read_as_it_was_kept(tmp_path):
    """What was kept before the ratio was set is whole, and is read beside what is thin."""
    with filled(tmp_path) as planning:
        planning.warm()
    with open_planning(tmp_path, unit_keep_ratio=0.3, method='full_reuse') as planning:
        assert planning.plan(QUESTION).fresh == 0
        planning.upsert(('robot', 'agent', 'robot: holds the green ball'))
        plan = planning.plan(QUESTION)
        assert plan.fresh == 1 and 0 < plan.memory - plan.loaded[0] < 30


@pytest.mark.parametrize('similarity', [0.2, -1.0])  # by segment, and all of them jointly
def test_whole_again_answers_as_if_nothing_had_been_dropped(tmp_path, similarity):
    numbers = dict(method='full_reuse', similarity=similarity)

    def known(planning):
        planning.advance(2)
        return planning.warm(), said(planning.plan(QUESTION)), planning.stats().bytes

    with filled(tmp_path / 'whole', **numbers) as planning:
        expected = known(planning)
    with filled(tmp_path / 'thin', unit_keep_ratio=0.3, **numbers) as planning:
        thin = known(planning)
        assert thin[2] < expected[2]
    with open_planning(tmp_path / 'thin', **numbers) as planning:
        assert planning.stats().kept == 0 and known(planning) == expected
    with open_planning(tmp_path / 'thin', **numbers) as planning:
        assert planning.stats().bytes == expected[2] and planning.warm() == 0


def test_a_group_is_thin_by_segment(tmp_path):
    with filled(tmp_path, similarity=-1.0, unit_keep_ratio=0.4, method='full_reuse') as planning:
        planning.advance(2)
        planning.warm()
        (unit,) = planning.memory.units()
        counts = [len(tokens) for tokens in planning._prompts.unit(unit)]
        kept = planning.memory.store.lengths(unit.key)
        assert kept == tuple(max(1, round(0.4 * count)) for count in counts)
        assert planning.plan(QUESTION).loaded == (sum(kept),) * LAYERS


@pytest.mark.parametrize('method', ['keep', 'full_reuse'])
def test_a_plan_of_thin_units_goes_on_from_a_capsule(tmp_path, method):
    numbers = dict(unit_keep_ratio=0.3, method=method, row_keep_ratio=0.4)
    planning, frozen, last = cut_off(tmp_path / 'one', 3, **numbers)
    with planning, filled(tmp_path / 'two', **numbers) as two:
        assert resumed(two, frozen) == ''
        assert set(two.plan(QUESTION).computed) == {0} and two.last == last
        two.row.check_integrity()


@pytest.mark.parametrize('name', ['vl_cache', 'snapkv', 'magic', 'kvpress:KeyDiffPress'])
def test_what_needs_more_than_the_unit_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=f"unit_compress must be one of .*knorm.*got '{name}'"):
        open_planning(tmp_path, unit_compress=name)
