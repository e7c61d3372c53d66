"""A robot that lost power continues its session; its older connection is closed."""

import numpy as np
import pytest
from server_cases import PATIENCE, RawClient, busy, key_file, libero, packed, running_server, until
from websockets.exceptions import ConnectionClosed

from embodied_kv.serving.websocket import handler

ARM = {'session_id': 'arm'}
KEY = 'robots-0123456789abcdef'


@pytest.fixture
def keys(tmp_path):
    return key_file(tmp_path, 'robots')[0]


def told(client):
    """Return the next message to a client, and the code with which it is closed."""
    said = client.socket.recv(PATIENCE)
    with pytest.raises(ConnectionClosed) as closed:
        client.socket.recv(PATIENCE)
    return said, closed.value.rcvd.code


def test_key_takes_the_session_over(keys):
    with running_server(api_keys_file=keys) as opened, opened.client(key=KEY) as older:
        older.infer(libero() | ARM)
        older.infer({'endpoint': 'snapshot', 'name': 'a'} | ARM)
        expected = older.infer(libero(1) | ARM)['actions']
        with opened.client(key=KEY) as newer:
            assert newer.infer({'endpoint': 'restore', 'name': 'a'} | ARM)['next'] == 1
            assert told(older) == ('another connection continues session arm', 1011)
            np.testing.assert_array_equal(newer.infer(libero(1) | ARM)['actions'], expected)
            assert opened.sessions.values()['sessions'] == 1


def test_take_over_works_during_a_request(keys):
    with running_server(api_keys_file=keys) as opened, opened.client(key=KEY) as older:
        with opened.client(key=KEY) as newer:
            with busy(opened):
                older.socket.send(packed(libero() | ARM))
                until(lambda: opened.sessions.values()['batches'] == 1)
                newer.socket.send(packed(libero(1) | ARM))
                assert told(older)[1] == 1011
            assert not isinstance(newer.socket.recv(PATIENCE), str)
            assert newer.infer(libero() | ARM)['actions'].shape == (10, 7)


def test_dead_connection_is_closed(keys):
    with running_server(api_keys_file=keys, client_timeout=3600.0) as opened:
        with RawClient(opened.port, KEY) as dead:
            dead.say(packed(libero() | ARM))
            until(lambda: opened.sessions.values()['sessions'] == 1)
            with opened.client(key=KEY) as newer:
                assert newer.infer(libero() | ARM)['actions'].shape == (10, 7)
                until(lambda: opened.server.counts()['sockets'] == 1)


def test_without_keys_a_dead_connection_loses_its_session(monkeypatch):
    monkeypatch.setattr(handler, 'ANSWER_SECONDS', 0.01)
    with running_server() as opened, RawClient(opened.port) as dead:
        dead.say(packed(libero() | ARM))
        until(lambda: opened.sessions.values()['sessions'] == 1)
        with opened.client() as newer:
            assert newer.infer(libero() | ARM)['actions'].shape == (10, 7)


def test_without_keys_a_live_connection_keeps_its_session():
    with running_server() as opened, opened.client() as older:
        older.infer(libero() | ARM)
        with opened.client() as newer, pytest.raises(RuntimeError, match='in use by another'):
            newer.infer(libero() | ARM)
        assert older.infer(libero() | ARM)['actions'].shape == (10, 7)


def test_client_is_not_disconnected_for_a_session_it_left(keys):
    with running_server(api_keys_file=keys) as opened, opened.client(key=KEY) as older:
        older.infer(libero() | ARM)
        older.infer(libero() | {'session_id': 'leg'})
        with opened.client(key=KEY) as newer:
            newer.infer(libero() | ARM)
            assert older.infer(libero() | {'session_id': 'leg'})['actions'].shape == (10, 7)
