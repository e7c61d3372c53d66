"""With scoring by all text, the queries are those of the prompt's text and of the question."""

import pytest
from compress_bench_cases import QUESTIONS, answered

from benchmarks.compress.kept import kept_by, statistics
from benchmarks.compress.ways import OURS, ROW, STRICT, WIDE, Way


@pytest.fixture(scope='module')
def asked():
    return answered(QUESTIONS[0], 4)[1]


def test_queries_are_prompt_and_question(asked):
    seen, behind = asked.frame, len(asked.tokens)
    assert statistics(Way(OURS, 0.1, STRICT), seen, asked).queries == behind
    wide = statistics(Way(WIDE, 0.1, STRICT), seen, asked)
    assert wide.queries == seen.text + behind
    end = seen.n + behind
    wanted = seen.scorer.statistics(range(end - wide.queries, end), 0.01, asked.tokens)
    assert wide.columns.equal(wanted.columns) and wide.density.equal(wanted.density)


def test_by_row_it_is_the_served_one(asked):
    ours, wide = (kept_by(Way(method, 0.2, ROW), asked.frame) for method in (OURS, WIDE))
    assert all(a.equal(b) for a, b in zip(ours, wide, strict=True))
