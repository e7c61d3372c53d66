"""The Lift example with robosuite, if `examples/robosuite/setup` has made its environment."""

import numpy as np
import pytest


@pytest.fixture
def opened(module):
    link = module('link')
    if not link.PYTHON.exists():
        pytest.skip('robosuite has no environment here: run examples/robosuite/setup')
    with link.world(32) as world:
        yield world


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_expert_lifts_the_cube_from_a_start_that_is_its_seed(opened):
    first, again, other = (opened.reset(seed) for seed in (7, 7, 8))
    assert (first['joints'] == again['joints']).all() and (first['cube'] == again['cube']).all()
    assert (first['cube'] != other['cube']).any()
    assert first['pictures']['front'].shape == (32, 32, 3)
    column, row = np.round(first['pixels']['front']).astype(int)
    red, green, _ = again['pictures']['front'][row, column].astype(int)
    assert red > 2 * green  # the cube is at the reported pixel
    for _ in range(120):
        if opened.step(opened.expert())['done']:
            return
    raise AssertionError('not lifted within 6 s')
