"""`stop` waits for no client, and is no error where the server has ended; a port that is taken."""

import socket

import pytest
from door_cases import RawClient, door, libero

from embodied_kv.serving.websocket import server
from embodied_kv.serving.websocket.config import ServerConfig


def test_it_waits_for_no_client_that_does_not_say_goodbye(monkeypatch):
    monkeypatch.setattr(server, 'GOODBYE_SECONDS', 0.01)
    with door(silence_seconds=3600.0) as opened:
        silent = socket.create_connection(('127.0.0.1', opened.port))
        mute = RawClient(opened.port).socket
        opened.server.stop()
        assert not opened.server.is_alive()
        for each in (silent, mute):
            each.close()


def test_it_may_be_told_twice():
    with door() as opened:
        opened.server.stop()  # and once more at the end


def test_a_port_that_is_taken_is_said():
    with door() as opened:
        config = ServerConfig(port=opened.port)
        second = server.PolicyServer(config, opened.sessions, opened.robot.contract)
        with pytest.raises(OSError, match='address already in use'):
            second.start()
        second.stop()
        with opened.client() as client:
            assert client.infer(libero())['actions'].shape == (10, 7)
