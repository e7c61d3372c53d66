"""`benchmarks.capsule.prefix_cache`: blocks contain the KV of their tokens, in bounded memory."""

import json

import pytest
import torch

from benchmarks.capsule import prefix_cache
from benchmarks.capsule.attention import PLANNERS, AttentionPlanner
from benchmarks.capsule.blocks import TOKENS, BlockCache
from benchmarks.capsule.planner import prompt
from benchmarks.capsule.prefix_cache import Plan, visited
from benchmarks.common import report

BLOCK_BYTES = 2 * TOKENS  # K and V of one layer, one head of dimension 1, one byte a number


@pytest.fixture
def cache():
    """Return a function that makes a cache of so many blocks, and K of 200 distinct numbers."""
    k = torch.arange(200, dtype=torch.uint8).view(1, 1, 1, 200, 1)
    return lambda blocks: (BlockCache(blocks * BLOCK_BYTES, k), k)


@pytest.fixture(scope='module')
def planner():
    torch.set_num_threads(1)
    return AttentionPlanner(PLANNERS['attention_tiny'])


def test_stored_blocks_continue_as_a_cold_prefill(planner):
    tokens = prompt(planner.vocab_size, 100, seed=1)
    cache = BlockCache(10**6, planner.k)
    planner.prefill(tokens)
    cache.store(tokens, planner.k, planner.v)
    cold = planner.logits.clone()
    planner.k.zero_(), planner.v.zero_()
    planner.length = cache.load(tokens, planner.k, planner.v)
    assert planner.length == 96
    planner.append(tokens[96:])
    torch.testing.assert_close(planner.logits, cold, rtol=1e-4, atol=1e-4)


def test_a_prompt_in_whole_blocks_leaves_a_block_to_compute(cache):
    blocks, k = cache(8)
    tokens = list(range(2 * TOKENS))
    blocks.store(tokens, k, k)
    assert blocks.match(tokens) == TOKENS
    assert blocks.match([*tokens, 99]) == 2 * TOKENS


def test_a_block_is_found_only_after_its_own_prefix(cache):
    blocks, k = cache(8)
    blocks.store(list(range(3 * TOKENS)), k, k)
    assert blocks.match([*range(TOKENS), *range(3 * TOKENS)]) == TOKENS
    assert blocks.match(list(range(TOKENS, 3 * TOKENS))) == 0


def test_equal_prefixes_are_stored_once(cache):
    blocks, k = cache(8)
    for end in (1, 2, 3):
        blocks.store([*range(2 * TOKENS), *[end] * TOKENS], k, k)
    assert len(blocks) == 5


def test_the_end_of_the_oldest_prompt_is_evicted_first(cache):
    blocks, k = cache(4)
    first, second = list(range(2 * TOKENS)), list(range(100, 100 + 2 * TOKENS))
    blocks.store(first, k, k)
    blocks.store(second, k, k)
    blocks.store([7] * TOKENS, k, k)
    assert (blocks.match([*first, 0]), blocks.match([*second, 0])) == (TOKENS, 2 * TOKENS)


def test_a_prompt_larger_than_the_pool_keeps_its_beginning(cache):
    blocks, k = cache(2)
    blocks.store(list(range(5 * TOKENS)), k, k)
    assert len(blocks) == 2 and blocks.match(list(range(5 * TOKENS))) == 2 * TOKENS


def test_a_session_longer_than_the_planner_is_refused(planner):
    with pytest.raises(ValueError, match='a session must have <= 640 tokens'):
        planner.prefill([1] * 641)


def test_zipf_visits_the_popular_most_and_a_cycle_visits_all():
    assert visited('cyclic', 3, 5, draw=0) == [0, 1, 2, 0, 1]
    counts = [visited('zipf', 4, 4000, draw=1).count(n) for n in range(4)]
    assert sorted(counts)[-1] == pytest.approx(4000 * 12 / 25, rel=0.1)
    assert visited('uniform', 4, 9, draw=2) != visited('uniform', 4, 9, draw=3)


def test_the_command_compares_equal_bytes(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    plan = Plan(context=64, shared=(0, 32), kept=2, sets=(2, 4), draws=2, visits=4)
    monkeypatch.setitem(prefix_cache.PLANS, 'quick', plan)
    prefix_cache.main('--quick --planner attention_tiny --device cpu'.split())
    *table, line = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert table and len(found['rows']) == 2 * 2 * 3 * 3
    by = {(r['shared'], r['of_memory'], r['access'], r['way']): r for r in found['rows']}
    for way in ('pinned', 'lru'):
        assert by[0, 1, 'cyclic', way]['reused_pct'] == 100
    assert by[0, 2, 'cyclic', 'pinned']['reused_pct'] == 50
    assert by[0, 2, 'cyclic', 'lru']['reused_pct'] == by[0, 2, 'cyclic', 'blocks']['reused_pct']
    assert by[32, 2, 'cyclic', 'blocks']['reused_pct'] > by[0, 2, 'cyclic', 'blocks']['reused_pct']
    for row in found['rows']:
        assert row['low_pct'] <= row['reused_pct'] <= row['high_pct']
        assert 0 < row['low_ms'] <= row['ms'] <= row['high_ms']
