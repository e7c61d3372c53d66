"""Joint rates are computed from positions over a time window; those of the driver are ignored."""

import numpy as np
import pytest

from embodied_kv.nodes.observation.joint_merger import JointInput, JointMerger

MS = 1_000_000
WHILE = 200 * MS


@pytest.fixture
def merger():
    return JointMerger([JointInput('arm', ('elbow',)), JointInput('hand', ('finger',))], 0.5)


def test_a_joint_that_was_heard_of_once_is_not_known(merger):
    merger.add('arm', 100 * MS, ['elbow'], [1.0], [0.0])
    assert np.isnan(merger.rates(100 * MS, WHILE)).all()


@pytest.mark.parametrize('interval', [1, 20, 150, 400, 5000])
def test_it_is_the_slope_over_the_while_or_between_two_messages(merger, interval):
    for number in range(600):
        moment = number * interval
        merger.add('arm', moment * MS, ['elbow'], [2e-3 * moment], [99.0])
        merger.add('hand', moment * MS, ['finger'], [0.5])
    np.testing.assert_allclose(merger.rates(moment * MS, WHILE), [2.0, 0.0], atol=1e-9)


def test_an_arm_that_has_just_come_to_rest_moves_until_the_while_is_over(merger):
    for moment in range(0, 500, 10):
        merger.add('arm', moment * MS, ['elbow'], [min(moment, 200) * 1e-3])
    rates = [merger.rates(moment * MS, WHILE)[0] for moment in (200, 300, 400, 490)]
    np.testing.assert_allclose(rates, [1.0, 0.5, 0.0, 0.0], atol=1e-9)


def test_noise_of_an_encoder_is_no_movement(merger):
    noise = np.random.default_rng(0).choice([0.0, 1.5e-3], 500)
    for moment, position in enumerate(noise):
        merger.add('arm', moment * MS, ['elbow'], [position])
    assert abs(merger.rates(moment * MS, WHILE)[0]) < 0.01


def test_it_is_told_of_the_moment_that_is_asked_for(merger):
    for moment in range(0, 1000, 10):
        merger.add('arm', moment * MS, ['elbow'], [max(0.0, moment - 500) * 1e-3])
    assert merger.rates(490 * MS, WHILE)[0] == 0
    assert merger.rates(900 * MS, WHILE)[0] == pytest.approx(1.0)
