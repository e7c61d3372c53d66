"""Prefetched batches come in the order of their steps, and only a limited number in advance."""

import pytest

from training.common.prefetch import AHEAD, prefetched


@pytest.mark.parametrize('start, stop', [(0, 0), (0, 2), (4, 5), (3, 12)])
def test_every_step_comes_once_in_order(start, stop):
    made = []
    batches = prefetched(lambda step: made.append(step) or -step, start, stop)
    assert list(batches) == [-step for step in range(start, stop)]
    assert made == list(range(start, stop))


def test_no_more_are_made_than_are_waited_for():
    made = []
    batches = prefetched(made.append, 0, 50)
    for _ in range(4):
        next(batches)
    batches.close()
    assert len(made) <= 4 + AHEAD


def test_what_fails_fails_at_its_step():
    batches = prefetched(lambda step: 1 / (2 - step), 0, 4)
    assert (next(batches), next(batches)) == (0.5, 1.0)
    with pytest.raises(ZeroDivisionError):
        next(batches)
