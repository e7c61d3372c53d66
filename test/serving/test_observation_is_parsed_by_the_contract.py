"""The contract determines the keys of views and the size of the state for any robot."""

import numpy as np
import pytest
from server_cases import REQUESTS, aloha, droid, libero

from embodied_kv.robots.reading import ContractError, load, parse, shipped
from embodied_kv.serving.websocket.observation_parser import ObservationParser, RefusedError


@pytest.mark.parametrize('robot', REQUESTS)
def test_views_and_state_are_those_of_the_contract(robot):
    contract, request = load(robot), REQUESTS[robot](3)
    seen = ObservationParser(contract).read(request)
    assert list(seen.images) == list(contract.views)
    assert all(image.dtype == np.uint8 and image.shape[2] == 3 for image in seen.images.values())
    assert seen.prompt == request['prompt']


def test_droid_joins_joints_and_gripper():
    request = droid()
    parts = request['observation/joint_position'], request['observation/gripper_position']
    np.testing.assert_array_equal(
        ObservationParser(load('franka')).read(request).state, np.concatenate(parts)
    )


def test_channels_first_are_channels_last_and_floats_are_bytes():
    dialect, request = ObservationParser(load('libero')), libero()
    seen = dialect.read(request).images
    first = {
        k: v.transpose(2, 0, 1) if v.ndim == 3 else v for k, v in request.items() if k != 'prompt'
    } | {'prompt': 'x'}
    floats = request | {'observation/image': request['observation/image'] / np.float32(255)}
    for same in (first, floats):
        for view, image in dialect.read(same).images.items():
            assert np.abs(image.astype(int) - seen[view]).max() <= (1 if same is floats else 0)


def test_optional_views_of_aloha_may_be_missing():
    request, dialect = aloha(), ObservationParser(load('aloha'))
    assert set(request['images']) == {'cam_high', 'cam_low', 'cam_left_wrist', 'cam_right_wrist'}
    request['images'] = {'cam_high': request['images']['cam_high']}
    images = dialect.read(request).images
    assert [image is None for image in images.values()] == [False, True, True]
    with pytest.raises(RefusedError, match='images/cam_high must be present'):
        dialect.read({'state': np.zeros(14), 'images': {}})


@pytest.mark.parametrize(
    'text',
    [b'go', 'go', ['go'], [b'go'], [['go']], np.array('go'), np.array(['go']), np.array([['go']])],
    ids=repr,
)
def test_a_prompt_may_be_bytes_or_an_array_or_a_list_of_one(text):
    assert ObservationParser(load('libero')).read(libero() | {'prompt': text}).prompt == 'go'


@pytest.mark.parametrize('state', [np.arange(8) > 3, [True] * 8, [0.5, *[True] * 7]], ids=repr)
def test_booleans_of_a_state_are_zero_and_one_as_in_openpi(state):
    seen = ObservationParser(load('libero')).read(libero() | {'observation/state': state})
    assert seen.state.tolist() == np.asarray(state, float).tolist()


def test_batch_dimensions_of_one_are_removed():
    dialect, request = ObservationParser(load('libero')), libero()
    seen = dialect.read(request)
    for axes in ((0,), (0, 1)):
        batch = {k: v if k == 'prompt' else np.expand_dims(v, axes) for k, v in request.items()}
        found = dialect.read(batch)
        np.testing.assert_array_equal(found.state, seen.state)
        for view, image in found.images.items():
            np.testing.assert_array_equal(image, seen.images[view])
    first = request['observation/image'].transpose(2, 0, 1)[np.newaxis]
    found = dialect.read(request | {'observation/image': first}).images
    np.testing.assert_array_equal(found['base_0_rgb'], seen.images['base_0_rgb'])


@pytest.mark.parametrize('robot', sorted(name for name in shipped() if load(name).openpi is None))
def test_other_contracts_use_their_own_keys(robot):
    contract = load(robot)
    count = sum(len(source.select) for source in contract.state)
    request = {view: np.zeros((4, 5, 3), np.uint8) for view in contract.views}
    seen = ObservationParser(contract).read(
        request | {'observation.state': [0.5] * count, 'prompt': 'go'}
    )
    assert seen.state.tolist() == [0.5] * count and list(seen.images) == list(contract.views)


@pytest.mark.parametrize(
    'wrong, said',
    [
        ({'observation/state': np.zeros(7)}, r'must be 8 numbers for libero \(got \[7\]\)'),
        ({'observation/state': np.full(8, np.nan)}, 'NaN or infinity'),
        ({'observation/state': np.full(8, 1e400)}, 'NaN or infinity'),
        ({'observation/state': np.full(8, 1e300)}, 'must be at most 1e\\+06'),
        ({'observation/state': 'left'}, 'must be an array of numbers'),
        ({'observation/state': [[1], [1, 2]]}, 'must be an array of numbers'),
        ({'observation/state': np.zeros((8, 1))}, 'must be 8 numbers'),
        ({'observation/image': np.zeros((28, 28), np.uint8)}, r'must be \[height, width, 3\]'),
        ({'observation/image': np.zeros((28, 28, 4), np.uint8)}, r'must be \[height, width, 3\]'),
        ({'observation/image': np.zeros((28, 0, 3), np.uint8)}, 'must have sides of 1'),
        ({'observation/image': np.zeros((5000, 1, 3), np.uint8)}, 'must have sides of 1'),
        ({'observation/image': np.zeros((2049, 2048, 3), np.uint8)}, 'must have at most 4194304'),
        ({'observation/image': np.zeros((28, 28, 3), np.int32)}, 'must be uint8'),
        ({'observation/image': np.full((28, 28, 3), np.nan)}, 'from 0 to 1'),
        ({'observation/image': b'jpeg'}, r'must be \[height, width, 3\]'),
        ({'observation/state': np.zeros((2, 8))}, 'must be 8 numbers'),
        (
            {'observation/image': np.zeros((2, 28, 28, 3), np.uint8)},
            r'must be \[height, width, 3\]',
        ),
        ({'prompt': 7}, 'must be text'),
        ({'prompt': np.float64(7)}, 'must be text'),
        ({'prompt': []}, 'must be text'),
        ({'prompt': ['a', 'b']}, 'must be text'),
        ({'prompt': np.array(['a', 'b'])}, 'must be text'),
        ({'prompt': b'caf\xe9'}, 'must be UTF-8'),
        ({'prompt': bytes(100_000)}, '100000 bytes'),
        ({'prompt': 'x' * 20_000}, 'characters'),
        (
            {'prompt': np.array('go \ud800')},
            r'the lone surrogate \\ud800',
        ),
        ({5: 1}, 'keys must be text'),
        ({'observation/state': np.zeros(10**6, np.uint8)}, 'at most 65536 numbers'),
        ({'observation': {'state': np.zeros(8)}}, 'observation/state must be sent once'),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else '',
)
def test_invalid_observation_is_refused_with_the_remedy(wrong, said):
    with pytest.raises(RefusedError, match=said):
        ObservationParser(load('libero')).read(libero() | wrong)


@pytest.mark.parametrize('robot', REQUESTS)
def test_another_robots_observation_is_refused(robot):
    for other in REQUESTS.keys() - {robot}:
        with pytest.raises(RefusedError, match='must be present: a client of'):
            ObservationParser(load(robot)).read(REQUESTS[other]())


@pytest.mark.parametrize(
    'section, said',
    [
        ({'views': {'base_0_rgb': 'a'}}, 'openpi.views must name .*got base_0_rgb'),
        ({'state': {'s': 7}}, 'openpi.state must have the 8 numbers .*got 7'),
        ({'optional': ['middle']}, 'openpi.optional must name views .*got middle'),
        ({'state': {'prompt': 8}}, 'must name the key prompt once'),
        ({'horizon': 99}, 'openpi.horizon must be <= chunk_size'),
        ({'horizn': 5}, 'did you mean horizon'),
    ],
)
def test_contract_with_unknown_names_is_refused(section, said):
    values = load('libero').model_dump(exclude_none=True, mode='json')
    values['openpi'] |= section
    with pytest.raises(ContractError, match=said):
        parse(values, 'it')
