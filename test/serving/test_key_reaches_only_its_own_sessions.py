"""A session belongs to the key that opened it; no other key reaches its capsules."""

import numpy as np
from server_cases import key_file, libero, running_server

ARM = {'session_id': 'arm'}


def test_another_key_finds_no_capsule_under_the_same_name(tmp_path):
    file, first, second = key_file(tmp_path, 'a', 'b')
    with running_server(api_keys_file=file) as opened:
        with opened.client(key=first) as client:
            client.infer(libero() | ARM)
            client.infer({'endpoint': 'snapshot', 'name': 'mine'} | ARM)
            expected = client.infer(libero(1) | ARM)['actions']
        restore = {'endpoint': 'restore', 'name': 'mine'} | ARM
        with opened.client(key=second) as other:
            assert 'must have a capsule' in other.infer(restore)['error']
        with opened.client(key=first) as client:
            assert client.infer(restore)['name'] == 'mine'
            np.testing.assert_array_equal(client.infer(libero(1) | ARM)['actions'], expected)


def test_two_keys_may_use_one_name_at_the_same_time(tmp_path):
    file, first, second = key_file(tmp_path, 'a', 'b')
    with running_server(api_keys_file=file) as opened:
        with opened.client(key=first) as one, opened.client(key=second) as two:
            for client in (one, two, one):
                assert client.infer(libero() | ARM)['actions'].shape == (10, 7)
            assert sorted(opened.sessions._open) == ['a:arm', 'b:arm']  # no key in a name
