"""The server admits connections by key, number and origin; a public address requires keys."""

import socket
import urllib.error

import pytest
from server_cases import PATIENCE, key_file, libero, page, running_server, until, upgrade
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from embodied_kv.serving.websocket.config import ServerConfig


def status(function):
    with pytest.raises(InvalidStatus) as refused:
        function()
    return refused.value.response.status_code


def test_only_keys_of_the_file_are_accepted(tmp_path):
    file, first, second = key_file(tmp_path, 'a', 'b')
    with running_server(api_keys_file=file) as opened:
        for key in (first, second):
            with opened.client(key=key) as client:
                assert client.infer(libero())['actions'].shape == (10, 7)
        for wrong in ('', 'third', first[:-1], f'{first},{second}'):
            assert status(lambda wrong=wrong: opened.client(key=wrong)) == 401
        assert page(opened.port, '/healthz') == 'OK\n'
        with pytest.raises(urllib.error.HTTPError, match='401'):
            page(opened.port, '/metrics')
        assert 'rejected_total{reason="key"} 5.0' in page(opened.port, '/metrics', first)


@pytest.mark.parametrize('is_known', [True, False])
def test_frames_that_come_with_the_request_are_read_after_the_key(tmp_path, is_known):
    file, key = key_file(tmp_path, 'a')
    with running_server(api_keys_file=file) as opened:
        with socket.create_connection(('127.0.0.1', opened.port)) as early:
            early.settimeout(PATIENCE)
            early.sendall(upgrade(key if is_known else 'wrong') + b'\x81\x80' + bytes(4))  # text
            found = b''.join(iter(lambda: early.recv(65536), b''))
        assert found.startswith(b'HTTP/1.1 101' if is_known else b'HTTP/1.1 401')
        assert (b'binary frames of msgpack' in found) == is_known


def test_public_address_requires_keys():
    for host in ('0.0.0.0', '192.168.1.5', '::', 'robot.example.org'):
        with pytest.raises(ValueError, match='host must be loopback while api_keys_file is empty'):
            ServerConfig(host=host)
        ServerConfig(host=host, api_keys_file='keys')
    for host in ('127.0.0.1', 'localhost', '::1'):
        ServerConfig(host=host)


def test_number_of_connections_is_bounded():
    with running_server(max_connections=2) as opened:
        with opened.client(), opened.client() as second:
            assert status(opened.client) == 503
            assert second.infer(libero())['actions'].shape == (10, 7)
            assert 'connections 2.0' in page(opened.port, '/metrics')


def test_connections_per_key_are_bounded(tmp_path):
    file, greedy, modest = key_file(tmp_path, 'greedy', 'modest')
    with running_server(api_keys_file=file, max_connections_per_key=2) as opened:
        with opened.client(key=greedy), opened.client(key=greedy) as second:
            assert status(lambda: opened.client(key=greedy)) == 503
            with opened.client(key=modest) as other:
                assert other.infer(libero())['actions'].shape == (10, 7)
            assert second.infer(libero())['actions'].shape == (10, 7)
        until(lambda: 'connections 0.0' in page(opened.port, '/metrics', modest))
        with opened.client(key=greedy) as again:
            assert again.infer(libero())['actions'].shape == (10, 7)


def test_browser_origin_is_refused():
    with running_server() as opened:
        address = f'ws://127.0.0.1:{opened.port}/'

        def browse():
            with connect(address, origin='http://evil.example', proxy=None, open_timeout=PATIENCE):
                pass

        assert status(browse) == 403
