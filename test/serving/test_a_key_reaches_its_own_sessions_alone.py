"""A session is of the key that it was opened with: no other key reaches its capsules."""

import numpy as np
import pytest
from door_cases import door, libero

ARM = {'session_id': 'arm'}


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / 'keys'
    file.write_text('first-secret\nsecond-secret\nfirst-secret\n')
    return str(file)


def test_another_key_finds_no_capsule_under_the_same_name(keys):
    with door(api_keys=keys) as opened:
        with opened.client(key='first-secret') as client:
            client.infer(libero() | ARM)
            client.infer({'endpoint': 'snapshot', 'name': 'mine'} | ARM)
            expected = client.infer(libero(1) | ARM)['actions']
        restore = {'endpoint': 'restore', 'name': 'mine'} | ARM
        with opened.client(key='second-secret') as other:
            assert 'no capsule' in other.infer(restore)['error']
        with opened.client(key='first-secret') as client:
            assert client.infer(restore)['name'] == 'mine'
            np.testing.assert_array_equal(client.infer(libero(1) | ARM)['actions'], expected)


def test_two_keys_may_use_one_name_at_the_same_time(keys):
    with door(api_keys=keys) as opened:
        with opened.client(key='first-secret') as one, opened.client(key='second-secret') as two:
            for client in (one, two, one):
                assert client.infer(libero() | ARM)['actions'].shape == (10, 7)
            assert sorted(opened.sessions._open) == ['1:arm', '2:arm']  # and no key is in a name
