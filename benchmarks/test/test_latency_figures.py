"""The figures of `benchmarks.latency`: paired differences, resampled ratios and targets."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_bench_cases import FOUR, at, episodes

from benchmarks.common.paired import paired
from benchmarks.latency import aims, figures

N = 400
ALL = 's' * N


def failing(*numbers):
    """Return outcomes in which all episodes succeed except for these."""
    return ''.join('.' if i in numbers else 's' for i in range(N))


def lines(points):
    return {(row['latency'], row['aim']): row['verdict'] for row in aims.verdict(points)}


def test_a_row_counts_its_episodes():
    some = episodes('s.ws' * 5)
    (row,) = figures.rows({at('off', 50): some})
    assert (row['way'], row['latency'], row['wrong']) == ('off', '50', 5)
    assert (row['success']['k'], row['success']['n']) == (10, 20)
    assert row['by_family'] == dict(zip(FOUR, (5, 0, 0, 5), strict=True))
    assert row['seconds'] == np.median(some.seconds[some.done])
    assert row['seam'] == pytest.approx(some.seam.mean()) and row['jerk_rms'] == 100


def test_nothing_to_mean_is_nothing():
    (row,) = figures.rows({at('off', 50): episodes('....', seam=np.nan)})
    assert (row['seam'], row['seconds']) == (None, None)


def test_losses_are_of_the_same_way_and_of_the_same_pairs():
    late, at_once = episodes(failing(0, 4, 5)), episodes(failing(4))
    points = {at('off', 0): episodes(ALL), at('trained', 0): at_once, at('trained', 300): late}
    (row,) = figures.costs(points)
    assert row['lost'] == pytest.approx(100 * 2 / N) and row['at_most'] > row['lost']
    expected = paired(late.done, at_once.done, late.scenes)
    assert row['at_most'] == -100 * expected['bound']
    by_family = {family: of['lost'] for family, of in row['by_family'].items()}
    assert by_family == pytest.approx({'reach': 1.0, 'pick': 1.0, 'put': 0.0, 'push': 0.0})


def test_what_varies_is_compared_with_none_and_with_what_varies_alike():
    points = {
        at(way, ms, spread=spread): episodes(ALL)
        for way in ('off', 'guided')
        for ms, spread in ((0, 0.0), (200, 0.0), (200, 0.5))
    }
    names = [(row['way'], row['latency']) for row in figures.costs(points)]
    assert names == [(way, ms) for way in ('off', 'guided') for ms in ('200', '200 ±50%')]
    beside = [(row['way'], row['latency']) for row in figures.against_off(points)]
    assert beside == [('guided', ms) for ms in ('0', '200', '200 ±50%')]


def test_fewer_steps_are_compared_with_the_most():
    points = {
        at('off', ms, euler_steps=n): episodes(failing(*range(10 - n)))
        for ms in (0, 200)
        for n in (3, 10)
    }
    rows = figures.by_steps(points)
    assert [(row['latency'], row['euler_steps'], row['than']) for row in rows] == [
        ('0', 3, 10),
        ('200', 3, 10),
    ]
    assert [row['lost'] for row in rows] == pytest.approx([100 * 7 / N] * 2)
    assert [row['verdict'] for row in aims.few_steps(points)] == ['reached'] * 2


numbers = st.lists(st.floats(0.1, 9), min_size=8, max_size=40)


@settings(max_examples=30, deadline=None)
@given(of=numbers, factor=st.floats(0.1, 3))
def test_a_ratio_of_multiples_is_their_factor_without_doubt(of, factor):
    of = np.array(of)
    found = figures.ratio(factor * of, of, np.arange(len(of)) // 4)
    assert list(found.values()) == pytest.approx([factor] * 4)


@settings(max_examples=30, deadline=None)
@given(pairs=st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=8, max_size=40))
def test_a_ratio_lies_in_its_interval_and_repeats(pairs):
    of, to = np.array(pairs).T
    scenes = np.arange(len(of)) // 4
    found = figures.ratio(of, to, scenes)
    assert found == figures.ratio(of, to, scenes)
    assert found['ratio'] == pytest.approx(of.mean() / to.mean())
    assert found['low'] <= found['at_most'] <= found['high']
    with_gap = figures.ratio(np.append(of, np.nan), np.append(to, 1e9), np.append(scenes, 0))
    assert with_gap == found


def test_what_happens_together_counts_once():
    of, to = np.random.default_rng(1).uniform(1, 2, (2, 40))
    four = [np.repeat(part, 4) for part in (of, to)]

    def width(*parts, scenes):
        found = figures.ratio(*parts, scenes)
        return found['high'] - found['low']

    once = width(of, to, scenes=np.arange(40))
    together = width(*four, scenes=np.arange(160) // 4)
    assert together == pytest.approx(once, rel=1e-6)
    assert width(*four, scenes=np.arange(160)) == pytest.approx(once / 2, rel=0.2)


@pytest.mark.parametrize('to', [np.nan, 0.0])
def test_a_ratio_to_nothing_is_none(to):
    assert figures.ratio(np.ones(4), np.full(4, to), np.arange(4)) is None


def run_of(trained=ALL, off=ALL, seam=0.05):
    made = {
        at('off', 0): ALL,
        at('trained', 0): ALL,
        at('off', 300): off,
        at('trained', 300): trained,
    }
    return {
        point: episodes(outcomes, seam if point.way == 'trained' else 0.3)
        for point, outcomes in made.items()
    }


def test_what_is_reached_is_said_to_be():
    worse = failing(*range(0, 200, 4), *range(1, 200, 4))
    assert set(lines(run_of(off=worse)).values()) == {'reached'}
    assert len(lines(run_of(off=worse))) == 5


@pytest.mark.parametrize(
    'change, missed',
    [
        (dict(trained=failing(*range(0, 13 * 9, 9))), {'lost since 0 ms, points'}),
        (
            dict(trained=failing(*range(0, 28, 4))),
            {'the same, reach, which loses most'},
        ),
        (dict(off=ALL), {'points above off, low end of 95%'}),
        (dict(seam=0.11), {"seam, of off's"}),
    ],
)
def test_what_is_missed_is_said_to_be(change, missed):
    worse = failing(*range(0, 200, 4), *range(1, 200, 4))
    found = lines(run_of(**dict(off=worse) | change))
    assert {aim for (_, aim), said in found.items() if said == 'missed'} == missed


def test_pooled_losses_have_a_bound_of_their_own():
    found = lines(run_of(trained=failing(*range(12))))  # 3 percentage points, in three scenes
    assert found['300', 'lost since 0 ms, points'] == 'reached'
    assert found['300', 'the same, 95% bound'] == 'missed'


def test_what_was_not_measured_has_no_verdict():
    points = run_of()
    del points[at('off', 300)], points[at('trained', 0)]
    assert lines(points) == {}
    varying = {dataclasses.replace(p, spread=0.5): some for p, some in run_of().items()}
    assert {latency for latency, _ in lines(varying)} == {'300 ±50%'}
