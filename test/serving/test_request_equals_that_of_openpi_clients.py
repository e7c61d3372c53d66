"""A robot sends its observation as openpi's own client of that robot does."""

import numpy as np
import pytest
from server_cases import REQUESTS

from embodied_kv.robots.contract import Contract
from embodied_kv.robots.reading import load
from embodied_kv.serving.remote_policy.messages import (
    MissedDeadlineError,
    RefusedRequestError,
    RequestWriter,
    UnusableReplyError,
    chunk,
)
from embodied_kv.serving.websocket.observation_parser import ObservationParser, flat


def kinds(request):
    """Return the nested keys with types; of arrays, dtype kind, dimensions and channels first."""
    return {
        key: kinds(value)
        if isinstance(value, dict)
        else (value.dtype.kind, value.ndim, value.shape[0] == 3)
        if isinstance(value, np.ndarray)
        else type(value)
        for key, value in request.items()
        if key != 'cam_low'  # openpi's client sends it, but its policy does not use it
    }


def seen(robot, height=24, width=32):
    contract, random = load(robot), np.random.default_rng(0)
    shape = height, width, 3
    images = {view: random.integers(0, 256, shape, np.uint8) for view in contract.views}
    count = sum(contract.clients.state.values())
    return contract, images, random.uniform(-1, 1, count)


@pytest.mark.parametrize('robot', REQUESTS)
def test_keys_nesting_and_channels_are_those_of_openpis_client(robot):
    contract, images, state = seen(robot)
    request = RequestWriter(contract).write(images, state, 'pick up')
    if robot == 'libero':  # openpi's client sends square images
        assert flat(request).keys() == flat(REQUESTS[robot]()).keys()
    assert kinds(request) == kinds(REQUESTS[robot]())


@pytest.mark.parametrize('robot', [*REQUESTS, 'tabletop', 'so101', 'ur5e'])
def test_parsed_request_equals_the_written_one(robot):
    contract, images, state = seen(robot)
    read = ObservationParser(contract).read(
        RequestWriter(contract).write(images, state, 'pick up')
    )
    np.testing.assert_array_equal(read.state, state)
    assert read.prompt == 'pick up' and read.images.keys() == images.keys()
    for view in images:
        np.testing.assert_array_equal(read.images[view], images[view])


def test_images_are_never_enlarged():
    contract, images, state = seen('libero', 480, 640)
    for size, expected in ((224, (168, 224, 3)), (0, (480, 640, 3)), (1000, (480, 640, 3))):
        request = RequestWriter(contract, size).write(images, state, 'x')
        assert request['observation/image'].shape == expected


def test_sides_are_rounded_down_as_by_openpis_client():
    contract, images, state = seen('libero', 480, 848)
    request = RequestWriter(contract, 224).write(images, state, 'x')
    assert request['observation/image'].shape == (126, 224, 3)


def test_a_view_may_be_missing_where_a_client_may_leave_it_out():
    contract, images, state = seen('aloha')
    del images['left_wrist_0_rgb']
    request = RequestWriter(contract).write(images, state, 'x')
    assert request['images'].keys() == {'cam_high', 'cam_right_wrist'}
    del images['base_0_rgb']
    with pytest.raises(ValueError, match='base_0_rgb must be present.*images/cam_high'):
        RequestWriter(contract).write(images, state, 'x')


def test_a_nested_map_that_no_key_is_in_is_refused():
    written = load('aloha').model_dump(mode='json', exclude_none=True)
    written['openpi']['nested'] = ['pictures']
    with pytest.raises(ValueError, match='openpi.nested must name maps .*got pictures'):
        Contract.model_validate(written)


def test_a_reply_becomes_a_chunk():
    actions = np.arange(21, dtype=np.float32).reshape(3, 7)
    timing = {'infer_ms': 5.0, 'prefill_ms': 2.0, 'denoise_ms': 3.0, 'steps': 4}
    made = chunk({'actions': actions, 'policy_timing': timing}, 7, 0.05, 9, 2)
    np.testing.assert_array_equal(made.values, actions)
    assert (made.dt, made.stamp, made.sequence, made.steps) == (0.05, 9, 2, 4)
    assert (made.prefill_ms, made.denoise_ms) == (2.0, 3.0)
    assert chunk({'actions': actions}, 7, 0.05, 9, 2).steps == 0


@pytest.mark.parametrize(
    'actions, why',
    [
        (None, 'got nothing'),
        ([[0.0] * 7], 'a list'),
        (np.array([['a'] * 7]), 'a ndarray'),
        (np.zeros((3, 6)), r'\[3, 6\]'),
        (np.zeros((0, 7)), r'\[0, 7\]'),
        (np.zeros(7), r'\[7\]'),
        (np.zeros((1001, 7)), r'\[1001, 7\]'),
        (np.full((3, 7), np.nan), 'NaN'),
        (np.full((3, 7), 1e9), 'must be at most 1e'),
    ],
    ids=str,
)
def test_unusable_reply_is_refused(actions, why):
    with pytest.raises(UnusableReplyError, match=why):
        chunk({'actions': actions, 'policy_timing': 'lies'}, 7, 0.05, 0, 0)


def test_missed_reply_raises_missed_deadline_error():
    with pytest.raises(MissedDeadlineError, match='by the deadline'):
        chunk({'missed': 'no chunk could be made by the deadline'}, 7, 0.05, 0, 0)


def test_a_request_that_the_server_refused_is_no_chunk():
    with pytest.raises(RefusedRequestError, match='state has NaN'):
        chunk({'refused': 'observation/state has NaN or infinity'}, 7, 0.05, 0, 0)
