"""On shutdown, readiness fails, requests in flight are answered, then all close with 1001."""

import socket
import threading
import urllib.error

import pytest
from server_cases import PATIENCE, busy, libero, packed, page, running_server, unpacked, until
from websockets.exceptions import ConnectionClosed


def free():
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return found.getsockname()[1]


def closed(client):
    with pytest.raises(ConnectionClosed) as told:
        client.socket.recv(PATIENCE)
    return told.value.rcvd.code


def test_requests_in_flight_are_answered_and_others_closed():
    with running_server(drain_timeout=PATIENCE, health_port=free()) as opened:
        port = opened.server._config.health_port
        assert page(port, '/readyz') == page(port, '/healthz') == 'OK\n'
        waiting, idle = [opened.client() for _ in range(3)], opened.client()
        ending = threading.Thread(target=opened.server.stop)
        with busy(opened):
            for client in waiting:
                client.socket.send(packed(libero()))
            until(lambda: sum(c.busy for c in opened.server._context.handlers) == 3)
            ending.start()
            assert closed(idle) == 1001
            with pytest.raises(urllib.error.HTTPError, match='503'):
                page(port, '/readyz')
            assert page(port, '/healthz') == 'OK\n'
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(('127.0.0.1', opened.port))
        for client in waiting:
            assert unpacked(client.socket.recv(PATIENCE))['actions'].shape == (10, 7)
            assert closed(client) == 1001
        ending.join(PATIENCE)
        assert not ending.is_alive()


def test_request_longer_than_the_drain_is_closed():
    with running_server(drain_timeout=0.3) as opened, busy(opened), opened.client() as client:
        client.socket.send(packed(libero()))
        until(lambda: any(c.busy for c in opened.server._context.handlers))
        opened.server.stop()
        assert closed(client) == 1001


def test_readiness_is_a_page_of_the_main_port_too():
    with running_server() as opened:
        assert page(opened.port, '/readyz') == 'OK\n'


def test_silent_probe_blocks_no_other():
    with running_server(health_port=free()) as opened:
        port = opened.server._config.health_port
        silent = [socket.create_connection(('127.0.0.1', port)) for _ in range(100)]
        assert page(port, '/healthz') == 'OK\n'
        with pytest.raises(urllib.error.HTTPError, match='404'):
            page(port, '/metrics')
        for each in silent:
            each.close()
