"""The reported work is the tokens that plans computed plus those of recomputed KV of units."""

from types import SimpleNamespace

import pytest
import torch
from memory_bench_cases import opened, small

from benchmarks.common.clock import Ceilings
from benchmarks.memory.asking import Asked
from benchmarks.memory.floor import floor_seconds, flops, loaded_bytes
from benchmarks.memory.story import draw_story
from benchmarks.memory.ways import Way, timed, trace_ways

WAYS = {way.name: way for way in trace_ways(3)}


def asked(way, tmp_path, questions=3):
    """Yield each reply with the number of tokens of the units whose KV the store gained by it."""
    settings = small(tmp_path)
    story = draw_story(settings.world, (1,), questions)
    with opened(way, tmp_path, settings) as planning:
        one, store = Asked(way, planning), planning.memory.store
        for facts in (story.first, *story.before):
            one.learn(facts, settings.speed)
        one.settle()
        for number, moment in enumerate(story.moments):
            for facts in moment.updates:
                one.learn(facts, settings.speed)
            before = {*store.keys()}
            reply = one.ask(moment, 9, 0, number)
            yield reply, sum(sum(store.lengths(key)) for key in {*store.keys()} - before)


@pytest.mark.parametrize('name', ['full', 'keep', 'cacheblend'])
def test_counted_work_equals_the_plans(tmp_path, name):
    found = list(asked(WAYS[name], tmp_path))
    for reply, kept in found:
        plan, layers = reply.plan, 4
        computed = sum(plan.computed) / (layers * plan.tokens)
        assert reply.computed_share == pytest.approx(computed + reply.fresh / plan.tokens)
        assert (reply.fresh > 0) == (plan.fresh > 0)
        assert reply.fresh == kept if name == 'keep' else reply.fresh <= kept
    if name == 'full':
        assert all(reply.computed_share == 1 and reply.lost == 0 for reply, _ in found)
    else:
        assert sum(reply.fresh for reply, _ in found) > 0 < sum(r.lost for r, _ in found)


def test_segments_of_the_timed_planner_have_as_many_tokens_as_fixed(tmp_path):
    for reply, _ in asked(WAYS['keep'], tmp_path, 1):
        assert reply.plan.memory == 64 * len(reply.plan.segments)


def test_updates_lose_more_in_larger_blocks(tmp_path):
    lost = [
        sum(r.lost for r, _ in asked(Way(f'keep {n}', 'keep', n), tmp_path)) for n in (1, 3, 9)
    ]
    assert 0 < lost[0] < lost[1] < lost[2]


def test_a_floor_is_its_operations_or_its_bytes(tmp_path):
    config = timed(small(tmp_path)).config  # 4 layers, 4 and 2 heads of 8, width 32, 48 in the MLP
    plan = SimpleNamespace(computed=(10, 4, 4, 4), loaded=(0, 6, 6, 6))
    reply = SimpleNamespace(plan=plan, fresh=5)
    weights = 32 * (4 + 2 * 2) * 8 + 4 * 8 * 32 + 3 * 32 * 48
    pairs = 10 * 11 / 2 + 3 * (4 * 5 / 2)
    assert flops(config, reply) == 2 * weights * (22 + 5 * 4) + 4 * 4 * 8 * pairs
    assert loaded_bytes(config, reply) == 18 * 2 * 2 * 8 * 4
    assert floor_seconds(config, reply, Ceilings(1.0, 1e9)) == flops(config, reply) / 1e9
    assert floor_seconds(config, reply, Ceilings(1e9, 1.0)) == loaded_bytes(config, reply) / 1e9
    assert torch.get_num_threads() == 1
