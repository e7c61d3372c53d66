"""A trajectory is played by time, from the current target on, with joints matched by name."""

import numpy as np
import pytest

from embodied_kv.demo.sim.player import TrajectoryPlayer

NAMES = ('pan', 'lift')


@pytest.fixture
def player():
    return TrajectoryPlayer(NAMES, np.array([1.0, 10.0]))


def test_holds_the_start_until_a_trajectory_is_loaded(player):
    assert np.array_equal(player.target(0.0), [1, 10]) and np.array_equal(
        player.target(9.0), [1, 10]
    )


def test_goes_straight_from_the_present_target_through_the_points_and_holds_the_last(player):
    player.load(NAMES, [[2, 20], [4, 20]], [1.1, 1.2], now=1.0)
    for now, expected in (
        (1.0, (1, 10)),
        (1.05, (1.5, 15)),
        (1.1, (2, 20)),
        (1.15, (3, 20)),
        (1.2, (4, 20)),
        (5.0, (4, 20)),
    ):
        assert np.allclose(player.target(now), expected)


def test_columns_are_taken_by_name(player):
    player.load(('lift', 'pan'), [[20, 2]], [1.0], now=0.0)
    assert np.allclose(player.target(1.0), [2, 20])


def test_a_newer_trajectory_replaces_what_is_due_after_its_first_time(player):
    player.load(NAMES, [[2, 0], [3, 0], [4, 0], [5, 0]], [1, 2, 3, 4], now=0.0)
    player.load(NAMES, [[30, 0], [40, 0]], [2.5, 3.5], now=1.5)
    assert np.allclose(player.target(1.5), [2.5, 0])
    assert np.allclose(player.target(2.0), [3, 0])
    assert np.allclose(player.target(2.25), [16.5, 0])
    assert np.allclose(player.target(3.5), [40, 0]) and np.allclose(player.target(9), [40, 0])


def test_points_already_past_are_skipped_without_a_jump(player):
    player.load(NAMES, [[5, 0], [6, 0], [7, 0]], [0.1, 0.2, 0.4], now=0.3)
    assert np.allclose(player.target(0.3), [1, 10])
    assert np.allclose(player.target(0.35), [4, 5])
    assert np.allclose(player.target(0.4), [7, 0])


def test_targets_are_continuous_over_any_takeover(player):
    rng, last = np.random.default_rng(0), player.target(0.0)
    for i in range(300):
        now = i * 0.01
        if i % 7 == 0:
            times = now + rng.uniform(-0.05, 0.05) + 0.1 * np.arange(1, 6)
            player.load(NAMES, rng.uniform(-1, 1, (5, 2)), times, now)
            assert np.allclose(player.target(now), last, atol=1e-9)
        last = player.target(now + 0.01)


def test_a_clock_that_jumps_back_is_survived(player):
    player.load(NAMES, [[2, 20]], [101.0], now=100.0)
    assert np.allclose(player.target(0.0), [1, 10])
    player.load(NAMES, [[3, 30]], [1.0], now=0.0)
    assert np.allclose(player.target(1.0), [3, 30]) and np.allclose(player.target(200.0), [3, 30])


@pytest.mark.parametrize(
    ('names', 'points', 'times', 'message'),
    [
        (NAMES, [[np.nan, 0]], [1], 'must be finite'),
        (NAMES, [[0, 0]], [np.inf], 'must be finite'),
        (('pan', 'tail'), [[0, 0]], [1], 'tail'),
        (('pan',), [[0]], [1], 'pan'),
        (('pan', 'pan'), [[0, 0]], [1], 'pan'),
        (NAMES, [[0, 0], [1, 1]], [1, 1], 'increase'),
        (NAMES, [[0, 0]], [1, 2], r'\[n\]'),
        (NAMES, np.zeros((0, 2)), [], 'n > 0'),
        (NAMES, [[0, 0]], [0.2], 'past'),
    ],
)
def test_a_wrong_trajectory_is_refused_and_the_old_one_plays_on(
    player, names, points, times, message
):
    player.load(NAMES, [[2, 20]], [1.0], now=0.0)
    with pytest.raises(ValueError, match=message):
        player.load(names, points, times, now=0.5)
    assert np.allclose(player.target(1.0), [2, 20])


def test_a_start_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match='start'):
        TrajectoryPlayer(NAMES, np.array([np.nan, 0]))
