"""The harness answers in many ways at once as in each way alone, and releases all rows."""

import pytest
from compress_bench_cases import QUESTIONS, WAYS, observe, policy

from benchmarks.compress.cache import Harness
from benchmarks.compress.ways import EARLY, ROW, STREAM, STRICT


@pytest.fixture(scope='module')
def tiny():
    return policy()


def heard(harness, ways, number, question):
    seen = harness.prefill(observe(number))
    said = harness.answers(harness.ask(seen, question), ways)
    harness.release(seen)
    return said


def test_every_way_says_what_it_says_alone(tiny):
    ways = [way for way in WAYS if way.method != 'random']  # `random` draws by the frame's number
    together = heard(Harness(tiny, ways, 6), ways, 1, QUESTIONS[1])
    alone = Harness(tiny, WAYS, 6)
    for way in ways[::3]:
        assert heard(alone, [way], 1, QUESTIONS[1]) == {way: together[way]}


def test_no_row_or_stream_is_left_over(tiny):
    harness = Harness(tiny, WAYS, 6)
    for number in range(3):
        seen = harness.prefill(observe(number))
        for question in QUESTIONS:
            said = harness.answers(harness.ask(seen, question), (None, *WAYS))
            assert all(1 <= answer.tokens <= 6 for answer in said.values())
        harness.release(seen)
    kv = harness.engine.kv
    assert (
        not kv.streams.live() and not kv.copies.allocation_failures and kv.stats().evictions == 0
    )
    kv.check_integrity()
    last = harness.prefill(observe(3))
    assert kv.stats().compressed == 0  # compressed rows are released with their frame
    harness.release(last)


def test_a_budget_is_kept_but_where_tokens_are_never_computed(tiny):
    harness = Harness(tiny, WAYS, 6)
    for way, answer in heard(harness, WAYS, 1, QUESTIONS[0]).items():
        if way.method not in EARLY:
            assert answer.kept == pytest.approx(way.keep_ratio, abs=0.01)


def test_by_stream_the_first_token_reads_the_whole(tiny):
    harness = Harness(tiny, WAYS, 6)
    seen = harness.prefill(observe(1))
    differs = set()
    for question in QUESTIONS:
        said = harness.answers(harness.ask(seen, question), (None, *WAYS))
        for way, answer in said.items():
            if way is not None and answer.ids[0] != said[None].ids[0]:
                differs.add(way.by)
    assert STREAM not in differs and {STRICT, ROW} <= differs


def test_too_many_ways_are_refused(tiny):
    harness = Harness(tiny, [], 6)
    seen = harness.prefill(observe(1))
    with pytest.raises(RuntimeError, match='no room for a copy'):
        harness.answers(harness.ask(seen, QUESTIONS[0]), WAYS)
