"""H ends before the first action whose final update exceeds (1 + t) x its earlier mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from embodied_kv.control.execution_horizon import (
    Confidence,
    Static,
    Whole,
    confidence,
    parse,
    with_execution_horizon,
)
from embodied_kv.types import ActionChunk

UPDATES = arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 12)),
    elements=st.floats(0, 4, width=16),
)


def updates(final, earlier=1.0, steps=4):
    """Return updates with equal earlier steps and the given last step."""
    final = np.asarray(final, float)
    return np.vstack([np.full((steps - 1, len(final)), earlier), final])


def test_the_papers_figure_7():
    """A_5 is 50% above its earlier mean, t is 40%: four actions are kept."""
    assert Confidence(0.4, 1)(updates([0.2, 0.3, 0.5, 0.9, 1.5, 0.4])) == 4


def test_update_at_the_threshold_does_not_stop():
    assert Confidence(0.5, 1)(updates([1.5, 1.5, 1.6])) == 2


def test_confident_chunk_is_executed_whole():
    assert Confidence(0.0, 1)(updates(np.full(50, 0.1))) == 50


def test_never_below_the_minimum_and_never_above_the_chunk():
    assert Confidence(0.0, 3)(updates([9.0] * 8)) == 3
    assert Confidence(0.0, 30)(updates([9.0] * 8)) == 8
    assert Static(30)(updates([0.0] * 8)) == 8
    assert Static(5)(updates([9.0] * 8)) == 5


@pytest.mark.parametrize('steps', [1, 2])
def test_horizon_is_the_minimum_below_three_steps(steps):
    quiet = np.zeros((steps, 10))
    assert Confidence(0.4, 3)(quiet) == 3
    assert not confidence(quiet).any()


@pytest.mark.parametrize('bad', [np.nan, np.inf])
@pytest.mark.parametrize('step', [0, 3])
def test_nonfinite_update_stops(bad, step):
    found = updates([0.1] * 6)
    found[step, 2] = bad
    assert Confidence(0.4, 1)(found) == 2
    assert confidence(found)[2] == 0


@given(UPDATES, st.floats(-1, 10))
def test_horizon_equals_a_loop_over_the_actions(found, t):
    sure = 0
    while (
        len(found) >= 3
        and sure < found.shape[1]
        and found[-1, sure] <= (1 + t) * found[:-1].mean(0)[sure]
    ):
        sure += 1
    assert Confidence(t, 1)(found) == min(max(sure, 1), found.shape[1])


@given(UPDATES, st.floats(-0.9, 5), st.floats(0, 5))
def test_larger_threshold_never_shortens_the_horizon(found, t, more):
    assert Confidence(t + more, 1)(found) >= Confidence(t, 1)(found)


@given(UPDATES)
def test_confidence_is_in_0_1_and_the_rule_is_a_bound_on_it(found):
    sure = confidence(found)
    assert sure.shape == found.shape[1:] and (sure >= 0).all() and (sure <= 1).all()
    horizon, t = Confidence(0.3, 1)(found), 0.3
    if len(found) >= 3 and horizon > 1:
        assert (sure[:horizon] >= 1 / (2 + t) - 1e-6).all()


def test_confidence_values():
    assert confidence(updates([0.0, 1.0, 3.0])) == pytest.approx([1.0, 0.5, 0.25])
    assert confidence(updates([2.0, 0.0], earlier=0.0)) == pytest.approx([0.0, 1.0])


def test_a_parameter_names_a_policy():
    assert parse('static:5') == Static(5)
    assert parse('confidence:0.2:3') == Confidence(0.2, 3)
    assert parse(str(Confidence(0.2, 3))) == Confidence(0.2, 3)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'must be whole, static:H or confidence:T:H_MIN'),
        ('static', 'must be whole, static:H'),
        ('os.system', 'must be whole, static:H'),
        ('static:0', 'H must be an integer >= 1'),
        ('static:2.5', "'static:2.5': invalid literal"),
        ('confidence:nan:3', 'threshold must be finite'),
        ('confidence:0.2:0', 'minimum must be an integer >= 1'),
        ('confidence:0.2', 'must be whole, static:H'),
    ],
)
def test_unknown_policy_name_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


@pytest.mark.parametrize('shape', [(4,), (0, 5), (4, 0), (2, 3, 4)])
def test_updates_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r'updates must be \[steps, chunk size\]'):
        Static(5)(np.zeros(shape))


def test_a_chunk_without_updates_is_refused():
    chunk = ActionChunk(np.zeros((4, 2)), 0.1, 0, 0.0, 0, 4, 0.0, 0.0)
    with pytest.raises(ValueError, match=r'updates of a chunk must be given \(got None\)'):
        with_execution_horizon(chunk, Whole())
