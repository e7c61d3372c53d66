"""Ratios between times of the same rounds, their intervals, and their targets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.ratio import ratio
from benchmarks.peers import figures, pi05, smolvla

AIMS = pi05.aims('float32')

seconds = st.floats(0.01, 10)
rounds = st.lists(seconds, min_size=1, max_size=9)


def taken(**ways):
    """Return the same times for every phase."""
    return {phase: ways for phase in figures.PHASES}


def rows(found):
    return {(row['phase'], row['ours'], row['theirs']): row for row in found}


@given(to=rounds, factor=seconds)
def test_a_ratio_of_multiples_is_their_factor_without_doubt(to, factor):
    found = ratio([factor * s for s in to], to)
    assert list(found.values()) == pytest.approx([factor] * 3)


@given(pairs=st.lists(st.tuples(seconds, seconds), min_size=1, max_size=9))
def test_a_ratio_lies_in_its_interval_and_repeats(pairs):
    of, to = zip(*pairs, strict=True)
    found = ratio(of, to)
    assert found['low'] <= found['ratio'] <= found['high'] and found == ratio(of, to)


def test_load_that_comes_in_a_round_cancels():
    found = ratio([2.0, 20.0, 4.0, 2.0, 2.0], [1.0, 10.0, 2.0, 1.0, 1.0])
    assert found == dict(ratio=2, low=2, high=2)


def test_times_are_medians_in_ms():
    ways = dict(ours_eager=[0.3, 0.1, 0.2], theirs_eager=[1.0, 9.0, 2.0])
    floors = dict.fromkeys(figures.PHASES, 0.05)
    found = figures.times(taken(**ways), floors)
    assert [row['phase'] for row in found] == list(figures.PHASES)
    of = found[0]['ours_eager_ms'], found[0]['theirs_eager_ms'], found[0]['floor_ms']
    assert of == pytest.approx((200, 2000, 50))


def test_every_pair_of_ours_and_theirs_has_its_ratio():
    one = [1.0]
    ways = dict(ours_eager=one, ours_compiled=one, theirs_eager=one, theirs_compiled=one)
    found = rows(figures.ratios(taken(**ways), AIMS))
    assert len(found) == 4 * len(figures.PHASES)
    aimed = {key for key, row in found.items() if row['aim'] is not None}
    assert aimed == {(phase, 'ours_compiled', theirs) for phase, theirs in AIMS}
    assert {row['verdict'] for row in found.values()} == {None, 'missed'}


def test_without_either_side_there_is_no_ratio():
    assert figures.ratios(taken(ours_eager=[1.0], ours_compiled=[1.0]), AIMS) == []


@pytest.mark.parametrize(
    'theirs, verdict',
    [
        ([2.6, 2.7, 2.8], 'reached'),
        ([2.5, 2.5, 2.5], 'reached'),
        ([2.4, 2.5, 2.6], 'undecided'),
        ([2.3, 2.4, 2.49], 'missed'),
    ],
)
def test_an_aim_is_reached_or_missed_by_a_whole_interval(theirs, verdict):
    ways = dict(ours_compiled=[1.0, 1.0, 1.0], theirs_eager=theirs)
    found = rows(figures.ratios(taken(**ways), AIMS))
    assert found['denoise', 'ours_compiled', 'theirs_eager']['verdict'] == verdict


def test_smolvla_in_bfloat16_is_aimed_at_twice_the_rate():
    assert smolvla.aims('bfloat16') == {('frame', 'theirs_eager'): 2}
    assert smolvla.aims('float32') == {('frame', 'theirs_eager'): pytest.approx(1 / 0.6)}
