"""The TransferCube example with gym-aloha, if `examples/aloha/setup` has made its environment."""

import numpy as np
import pytest


@pytest.fixture
def opened(transfer):
    link = transfer('link')
    if not link.PYTHON.exists():
        pytest.skip('gym-aloha has no environment here: run examples/aloha/setup')
    with link.world(32) as world:
        yield world


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_expert_passes_the_cube_on_from_a_start_that_is_its_seed(opened):
    first, again, other = (opened.reset(seed) for seed in (7, 7, 8))
    assert (first['cube'] == again['cube']).all() and (first['cube'] != other['cube']).any()
    assert first['pictures']['high'].shape == (32, 32, 3)
    column, row = np.round(first['pixels']['high']).astype(int)
    red, green, _ = again['pictures']['high'][row, column].astype(int)
    assert red > 2 * green  # the cube is at the reported pixel
    for _ in range(80):
        if opened.step(opened.expert())['done']:
            return
    raise AssertionError('not passed on within 8 s')
