"""An engine with the parameters of a point of the grid keeps and generates the same tokens."""

import pytest
import torch
from compress_bench_cases import QUESTIONS, observe, policy

from benchmarks.compress.cache import Harness
from benchmarks.compress.grid import figures, longer, table
from benchmarks.compress.kept import kept_by
from benchmarks.compress.tally import Tally
from benchmarks.compress.ways import (
    AFTER,
    OURS,
    STREAM,
    STRICT,
    WIDE,
    Way,
    default,
    grid,
)
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig

TOKENS = 8


@pytest.fixture(scope='module')
def tiny():
    return policy()


def assert_served(tiny, way, **config):
    """Check that an engine with these parameters keeps and generates what the harness does."""
    frame, question = observe(1), 'Is?'
    harness = Harness(tiny, [way], TOKENS)
    seen = harness.prefill(frame)
    asked = harness.ask(seen, question)
    said = harness.answers(asked, [None, way])
    kept = kept_by(way, seen, asked)
    engine = Engine(
        tiny, EngineConfig(rows=4, time_budget=False, language_keep_ratio=way.keep_ratio, **config)
    )
    (handle,) = engine.prefill([frame])
    stream = engine.open(handle, question, max_tokens=TOKENS)
    while not stream.lease.is_copy:
        engine.decode()
    for layer, (positions, whole) in enumerate(zip(kept, seen.scorer.prefix.keys, strict=True)):
        own = engine.kv.compressed.piece(layer, stream.lease.row)[0]
        torch.testing.assert_close(own, whole[:, positions[0]], atol=1e-5, rtol=0)
    while not stream.reason:
        engine.decode()
    assert said[way].ids == tuple(stream.tokens)
    assert said[None].ids[: way.after + 1] == said[way].ids[: way.after + 1]


@pytest.mark.parametrize('after', [0, 1, 3])
@pytest.mark.parametrize('method, by', [(OURS, 'stream'), (WIDE, 'text')])
@pytest.mark.parametrize('shares', ['bounded', 'equal'])
def test_the_same_tokens_are_kept_and_said(tiny, method, by, shares, after):
    way = Way(method, 0.3, STREAM, shares=shares, after=after)
    told = dict(
        compression_method=OURS,
        compression_queries=by,
        compression_layer_budgets=shares,
        compression_after_tokens=after,
    )
    assert_served(tiny, way, **told)


def test_the_default_way_is_what_an_engine_does_unless_told_otherwise(tiny):
    assert_served(tiny, default(STREAM, 0.3))


def test_strict_reads_what_is_kept_one_token_sooner(tiny):
    ways = [Way(OURS, 0.1, by, after=2) for by in (STREAM, STRICT)]
    harness = Harness(tiny, ways, TOKENS)
    asked = harness.ask(harness.prefill(observe(2)), QUESTIONS[1])
    said = harness.answers(asked, [None, *ways])
    for way, whole in zip(ways, (3, 2), strict=True):
        assert said[way].ids[:whole] == said[None].ids[:whole]
        assert said[way].tokens == TOKENS and said[way].text
    assert kept_by(ways[0], asked.frame, asked) is kept_by(ways[1], asked.frame, asked)


def test_an_answer_that_ends_before_the_choice_is_the_whole_ones(tiny):
    way = Way(OURS, 0.1, STREAM, after=4)
    harness = Harness(tiny, [way], 5)  # tokens, all of which read the whole prefix
    asked = harness.ask(harness.prefill(observe(1)), QUESTIONS[0])
    said = harness.answers(asked, [None, way])
    assert said[way].ids == said[None].ids and said[way].text == said[None].text


def test_every_way_of_the_grid_has_a_place_in_its_table():
    tally, ways = Tally(), grid()
    assert len(set(ways)) == len(ways)
    for way in (None, *ways):
        tally.right[way], tally.kept[way] = [True, False], [0.1, 0.1]
    tally.frames, tally.kinds, tally.tokens = [0, 1], ['a', 'b'], [1, 1]
    rows = figures(tally)
    for by in (STREAM, STRICT):
        lines = table(rows, by)
        assert len(lines) * len(AFTER) * 2 == len(ways)
        assert all(line['n 0'] == line['whole'] == 50 for line in lines)


def test_longer_answers_are_those_that_read_what_was_kept():
    tally = Tally(tokens=[2, 3, 4])
    served, strict = (Way(OURS, 0.1, by, after=2) for by in (STREAM, STRICT))
    tally.right = {None: [True] * 3, served: [True, True, False], strict: [True, False, False]}
    assert longer(tally, served)['right']['k'] == 0 and longer(tally, served)['whole']['k'] == 1
    assert longer(tally, strict)['right']['n'] == 2
    assert longer(tally, Way(OURS, 0.1, STREAM, after=4)) is None
