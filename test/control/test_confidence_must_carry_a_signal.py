"""An execution horizon by confidence is used only while confidence predicts revisions."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.control.confidence_signal import FEWEST, ConfidenceSignal
from embodied_kv.control.execution_horizon import Confidence, Static, Whole
from embodied_kv.types import ActionChunk

DT, SIZE, DIMS = 0.1, 8, 3
WANTED = Confidence(0.2, 2)


def chunk(values, confidence, horizon=5):
    return ActionChunk(
        values, DT, 0, 0.0, 0, 10, 0.0, 0.0, execution_horizon=horizon, confidence=confidence
    )


def stream(count, tells, seed=0, change=lambda confidence: confidence):
    """Yield chunks, one per `DT`, whose actions change by a random size for each action.

    tells: whether the confidence of an action falls with the size of its next change.
    """
    random = np.random.default_rng(seed)
    plan = random.normal(size=(count + SIZE, DIMS))
    for number in range(count):
        sizes = random.exponential(size=SIZE)
        others = sizes if tells else random.exponential(size=SIZE)
        values = plan[number : number + SIZE].copy()
        yield chunk(values, change((1 / (1 + others)).astype(np.float32))), number * DT
        changed = random.normal(size=(SIZE, DIMS)) * sizes[:, None]
        plan[number : number + SIZE] += changed


def seen(chunks, signal=None):
    signal = signal or ConfidenceSignal()
    for one, began in chunks:
        signal.see(one, began)
    return signal


def test_confidence_that_predicts_revisions_is_used():
    signal = seen(stream(4 * FEWEST, tells=True))
    mean, low, high = signal.estimate()
    assert 0.5 < low < mean < high
    assert signal.pairs >= FEWEST and not signal.is_absent
    assert signal.validated(WANTED) is WANTED


def test_confidence_without_a_signal_becomes_a_constant_horizon_of_the_same_mean():
    signal = seen(stream(4 * FEWEST, tells=False))
    _, low, high = signal.estimate()
    assert low < 0.5 < high
    assert signal.validated(WANTED) == Static(5)


def test_the_constant_horizon_is_not_below_the_minimum_of_the_confidence():
    signal = seen(stream(4 * FEWEST, tells=False))
    assert signal.validated(Confidence(0.2, 7)) == Static(7)


@pytest.mark.parametrize('policy', [Static(3), Whole()])
def test_other_policies_are_not_validated(policy):
    assert seen(stream(4 * FEWEST, tells=False)).validated(policy) is policy


def test_confidence_is_used_until_enough_chunks_were_compared():
    signal = ConfidenceSignal()
    for one, began in stream(4 * FEWEST, tells=False):
        if signal.pairs < FEWEST:
            assert signal.validated(WANTED) is WANTED
        signal.see(one, began)
    assert signal.validated(WANTED) != WANTED


def test_a_constant_confidence_carries_no_signal_and_is_not_counted():
    signal = seen(stream(50, tells=True, change=lambda confidence: np.full_like(confidence, 0.5)))
    assert signal.pairs == 0 and math.isnan(signal.estimate()[0])


@given(seed=st.integers(0, 1000), power=st.floats(0.2, 5.0))
def test_only_the_order_of_confidences_counts(seed, power):
    plain = seen(stream(40, tells=True, seed=seed)).estimate()
    bent = seen(stream(40, tells=True, seed=seed, change=lambda c: c**power)).estimate()
    assert bent == pytest.approx(plain)


@given(units=st.lists(st.floats(1e-3, 1e3), min_size=DIMS, max_size=DIMS))
def test_units_of_the_dimensions_do_not_count(units):
    def scaled():
        for one, began in stream(40, tells=True):
            yield chunk(one.values * np.array(units), one.confidence), began

    assert seen(scaled()).estimate() == pytest.approx(seen(stream(40, tells=True)).estimate())


def test_chunks_that_share_no_moment_are_not_compared():
    apart = ((one, 100.0 * number) for number, (one, _) in enumerate(stream(50, tells=True)))
    assert seen(apart).pairs == 0


def test_chunks_between_two_periods_are_compared_by_interpolation():
    shifted = ((one, began * 0.73) for one, began in stream(4 * FEWEST, tells=True))
    assert seen(shifted).estimate()[1] > 0.5


def test_nothing_is_compared_across_a_restart():
    signal = ConfidenceSignal()
    for one, began in stream(50, tells=True):
        signal.see(one, began)
        signal.restart()
    assert signal.pairs == 0


def test_memory_does_not_grow():
    signal = seen(stream(20, tells=True))
    before = len(pickle.dumps(vars(signal)))
    seen(((one, 2.0 + began) for one, began in stream(200, tells=True)), signal)
    assert len(pickle.dumps(vars(signal))) < before + 100
