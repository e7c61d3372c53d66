"""`stop` waits for no client and may be called twice; a port in use is an error."""

import socket

import pytest
from server_cases import RawClient, libero, running_server

from embodied_kv.serving.websocket import server
from embodied_kv.serving.websocket.config import ServerConfig


def test_stop_does_not_wait_for_a_silent_client(monkeypatch):
    monkeypatch.setattr(server, 'GOODBYE_SECONDS', 0.01)
    with running_server(client_timeout=3600.0) as opened:
        silent = socket.create_connection(('127.0.0.1', opened.port))
        mute = RawClient(opened.port).socket
        opened.server.stop()
        assert not opened.server.is_alive()
        for each in (silent, mute):
            each.close()


def test_stop_may_be_called_twice():
    with running_server() as opened:
        opened.server.stop()  # called again at the end of the block


def test_port_in_use_is_an_error():
    with running_server() as opened:
        config = ServerConfig(port=opened.port)
        second = server.PolicyServer(config, opened.sessions, opened.robot.contract)
        with pytest.raises(OSError, match='address already in use'):
            second.start()
        second.stop()
        with opened.client() as client:
            assert client.infer(libero())['actions'].shape == (10, 7)
