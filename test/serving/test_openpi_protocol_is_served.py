"""The server follows openpi's protocol: handshake, inference, timings and errors."""

import logging

import msgpack
import numpy as np
import pytest
from server_cases import PATIENCE, REQUESTS, libero, packed, page, running_server
from websockets.exceptions import ConnectionClosedError

from embodied_kv.serving.websocket.extensions import KEY

SHAPES = {'franka': (10, 8), 'libero': (10, 7), 'aloha': (50, 14)}
METADATA = {'aloha': {'reset_pose': [0.0, -1.5, 1.5, 0.0, 0.0, 0.0]}}


def openpis(metadata):
    """Return the metadata without the extensions, as openpi's servers send it."""
    return {key: value for key, value in metadata.items() if key != KEY}


@pytest.mark.parametrize('robot', REQUESTS)
def test_a_client_of_each_robot_gets_its_actions(robot):
    with running_server(robot) as opened, opened.client() as client:
        assert openpis(client.metadata) == METADATA.get(robot, {})
        for n in range(3):
            reply = client.infer(REQUESTS[robot](n))
            assert reply['actions'].shape == SHAPES[robot]
            assert reply['actions'].dtype == np.float32
            assert np.isfinite(reply['actions']).all()
            assert reply['policy_timing']['infer_ms'] > 0
            assert ('prev_total_ms' in reply['server_timing']) == (n > 0)
            others = {k: v for k, v in reply.items() if k != 'actions'}
            assert set(others) == {'policy_timing', 'server_timing'}


def test_a_client_of_the_package_msgpack_numpy_reads_its_actions():
    with running_server() as opened, opened.client() as client:
        expected = client.infer(libero() | {'session_id': 'a'})['actions']
        client.infer({'endpoint': 'reset', 'session_id': 'a'})
        request = {
            key: {b'nd': True, b'type': v.dtype.str, b'kind': b'', b'shape': v.shape}
            | {b'data': v.tobytes()}
            if isinstance(v, np.ndarray)
            else v
            for key, v in (libero() | {'session_id': 'a'}).items()
        }
        client.socket.send(msgpack.packb(request))
        found = msgpack.unpackb(client.socket.recv(PATIENCE))['actions']
        assert found[b'nd'] is True
        actions = np.ndarray(found[b'shape'], np.dtype(found[b'type']), found[b'data'])
        np.testing.assert_array_equal(actions, expected)
        client.socket.send(packed(libero()))
        found = msgpack.unpackb(client.socket.recv(PATIENCE))['actions']
        assert found.keys() == {b'__ndarray__', b'data', b'dtype', b'shape'}


def test_a_hundred_inferences_and_any_path():
    with running_server() as opened, opened.client(path='/any/path?x=1') as client:
        for n in range(100):
            assert client.infer(libero(n))['actions'].shape == (10, 7)


def test_an_error_is_text_without_a_traceback_and_the_end():
    with running_server() as opened, opened.client() as client:
        with pytest.raises(RuntimeError, match='observation/image must be present') as told:
            client.infer({'prompt': 'x'})
        assert 'Traceback' not in str(told.value) and 'observation/state' in str(told.value)
        with pytest.raises(ConnectionClosedError) as closed:
            client.infer(libero())
        assert closed.value.rcvd.code == 1011


def test_healthz_answers_ok():
    with running_server() as opened:
        assert page(opened.port, '/healthz') == 'OK\n'


def test_truncated_prompt_is_logged_once(caplog):
    with running_server() as opened, opened.client() as client, caplog.at_level(logging.WARNING):
        for _ in range(2):
            client.infer(libero() | {'prompt': 'wait and ' * 400})
        assert caplog.text.count('the prompt of 3599 characters is cut') == 1
        caplog.clear()
        client.infer(libero() | {'prompt': 'x'})
        assert 'is cut' not in caplog.text
