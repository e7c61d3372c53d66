"""Predicted timelines have the sums that follow from the work of a plan."""

import pytest

from benchmarks.memory.asking import waiting
from benchmarks.memory.load_policies import POLICIES
from benchmarks.memory.spans import COMPUTE, LOAD, Span, Timeline
from benchmarks.memory.timeline import Job, costs, rows

JOB = Job((6, 4, 2), {'a': 2, 'b': 2, 'c': 2}, ((), ('c',), ('a',)))


def test_separate_takes_the_sum_and_balanced_never_longer():
    found = JOB.foretold([6.0, 4.0, 2.0], dict.fromkeys('abc', 0.5))
    assert list(found) == list(POLICIES)
    assert found['separate'].end == pytest.approx(12 + 3 * 0.5)
    assert 12 <= found['balanced'].end <= found['next_layer'].end <= found['separate'].end
    for timeline in found.values():
        assert timeline.busy(COMPUTE) == 12 and timeline.busy(LOAD) == pytest.approx(1.5)
        assert waiting(timeline) == pytest.approx(timeline.end - 12)
    told = list(rows({'stated': found}))
    assert told[0]['separate_takes_x'] == 1 and told[0]['waiting_ms'] == pytest.approx(1500)


def test_costs_are_those_of_the_measured_spans():
    compute = [Span(COMPUTE, i, float(i), i + 0.5) for i in range(3)]
    loads = [Span(LOAD, 1, 0.6, 0.7, 'c'), Span(LOAD, 2, 1.6, 1.9, 'c')]
    each, load = costs(Timeline.of([*compute, *loads]), JOB)
    assert each == pytest.approx([0.5, 0.5, 0.5])
    assert load == pytest.approx(dict(a=0.0, b=0.0, c=0.2))


def test_a_unit_is_dropped_by_the_first_layer_that_it_is_loaded_for():
    class Plan:
        segments, computed = ('a', 'b', 'c'), (6, 4, 2)
        timeline = Timeline.of(
            [
                Span(LOAD, 2, 1.0, 1.1, 'c'),
                Span(LOAD, 1, 0.5, 0.6, 'c'),
                Span(LOAD, 2, 1.1, 1.2, 'a'),
            ]
        )

    class Reply:
        plan = Plan

    assert Job.of(Reply, {'a': 2, 'b': 2, 'c': 2}) == JOB
