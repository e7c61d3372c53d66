"""Clients that send invalid data, flood, stall or disconnect do not affect other clients.

They leave no session, row or stream.
"""

import logging
import socket
import threading
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from server_cases import PATIENCE, busy, libero, packed, running_server, tabletop, until
from websockets.exceptions import ConnectionClosed

from embodied_kv.serving.websocket.handler import ConnectionHandler
from embodied_kv.serving.websocket.observation_parser import ObservationParser
from embodied_kv.serving.websocket.session import Session


def nothing_is_left(opened):
    until(lambda: opened.sessions.values()['sessions'] == 0)
    until(lambda: opened.engine.kv.stats().leases == 0)
    until(lambda: opened.sessions.values()['robots'] == 0)
    until(lambda: opened.engine.kv.streams.live() == [])
    opened.engine.kv.check_integrity()


def leave(client):
    """Disconnect without a close frame."""
    client.socket.socket.shutdown(socket.SHUT_RDWR)


def refused(client):
    try:
        while True:
            assert isinstance(client.socket.recv(PATIENCE), str)
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None


BAD = {
    'nan': packed(libero() | {'observation/state': np.full(8, np.nan)}),
    'other dims': packed(libero() | {'observation/state': np.zeros(14)}),
    'huge': packed(libero() | {'observation/state': np.full(8, 1e300)}),
    'garbage': b'\xc1' * 100,
    'no map': packed([1, 2]),
    'text': 'hello',
    'empty': b'',
    'pickle': packed({'x': 1}).replace(b'x', b'\x80'),
    'no endpoint': packed({'endpoint': 'shell'}),
    'no words': packed(libero() | {'prompt': ' '}),
    'half a character': packed(libero() | {'prompt': np.array('go \ud800')}),
}


@pytest.mark.parametrize('message', BAD.values(), ids=BAD)
def test_invalid_message_ends_only_its_own_connection(message):
    with running_server() as opened:
        with opened.client() as good, opened.client() as bad:
            bad.socket.send(message)
            assert good.infer(libero())['actions'].shape == (10, 7)
            assert refused(bad) == 1011
            assert good.infer(libero())['actions'].shape == (10, 7)
        nothing_is_left(opened)


def test_too_long_message_is_not_stored():
    with running_server(max_message_mib=1) as opened, opened.client() as good:
        with opened.client() as bad:
            with suppress(ConnectionClosed):
                bad.socket.send(bytes(2**21))
            assert refused(bad) == 1009
        assert good.infer(libero())['actions'].shape == (10, 7)


def test_client_that_leaves_during_a_request_affects_no_other():
    with running_server() as opened:
        with opened.client() as good:
            with busy(opened):
                leaving = [opened.client() for _ in range(3)]
                for client in leaving:
                    client.socket.send(packed(libero()))
                until(lambda: opened.sessions.values()['waiting'] == 2)  # one is at the engine
                for client in leaving:
                    leave(client)
                until(lambda: opened.sessions.values()['waiting'] == 0)
            assert good.infer(libero())['actions'].shape == (10, 7)
        nothing_is_left(opened)


def test_flooding_client_delays_only_itself():
    with running_server() as opened:
        with opened.client() as good:
            flooding = opened.client()
            for n in range(50):
                flooding.socket.send(packed(libero(n)))
            for n in range(20):
                assert good.infer(libero(n))['actions'].shape == (10, 7)
            leave(flooding)
        nothing_is_left(opened)


def test_silent_sockets_are_bounded():
    with running_server(max_connections=4) as opened, opened.client() as good:
        silent = [socket.create_connection(('127.0.0.1', opened.port)) for _ in range(40)]
        try:
            assert good.infer(libero())['actions'].shape == (10, 7)
            closed = 0
            for each in silent:
                each.settimeout(PATIENCE)
            for each in silent[:20]:  # the oldest of too many
                closed += _is_closed(each)
            assert closed == 20
            with opened.client() as newcomer:
                assert newcomer.infer(libero())['actions'].shape == (10, 7)
            for each in silent[-10:]:
                each.setblocking(False)
                with pytest.raises(BlockingIOError):  # still open, and nothing was sent
                    each.recv(1)
        finally:
            for each in silent:
                each.close()


def _is_closed(connection):
    try:
        return connection.recv(1) == b''
    except ConnectionResetError:
        return True


def test_request_beyond_its_time_limit_fails():
    with running_server(request_timeout=0.2) as opened:
        with busy(opened), opened.client() as client:
            with pytest.raises(RuntimeError, match='no answer within 0.2 s'):
                client.infer(libero())
        nothing_is_left(opened)


def test_client_that_leaves_during_a_restore_keeps_no_row(monkeypatch):
    begun, gone, over = threading.Event(), threading.Event(), threading.Event()
    restore = Session.restore

    def late(self, name):
        begun.set()
        gone.wait(PATIENCE)
        try:
            return restore(self, name)
        finally:
            over.set()

    monkeypatch.setattr(Session, 'restore', late)
    with running_server() as opened:
        client = opened.client()
        client.infer(libero() | {'session_id': 'arm'})
        client.infer({'endpoint': 'snapshot', 'session_id': 'arm'})
        client.socket.send(packed({'endpoint': 'restore', 'session_id': 'arm'}))
        try:
            assert begun.wait(PATIENCE)
            leave(client)
            nothing_is_left(opened)
        finally:
            gone.set()
        assert over.wait(PATIENCE)
        nothing_is_left(opened)


def test_client_that_leaves_during_a_question_keeps_no_stream():
    with running_server('tabletop') as opened:
        for waits in (True, False):
            client = opened.client()
            client.infer(tabletop())
            with busy(opened) if waits else nullcontext():
                asked = {'endpoint': 'ask', 'question': 'Subtask:', 'max_tokens': 4096}
                client.socket.send(packed(asked))
                leave(client)
                until(lambda: opened.sessions.values()['sessions'] == 0)
            nothing_is_left(opened)


def test_lone_surrogate_is_refused(caplog):
    with running_server() as opened, opened.client() as bad, caplog.at_level(logging.WARNING):
        with pytest.raises(RuntimeError, match=r'prompt must be valid UTF-8'):
            bad.infer(libero() | {'prompt': np.array('go \ud800')})
        assert 'Traceback' not in caplog.text


def test_repeated_failures_are_throttled_in_the_log(monkeypatch, caplog):
    def broken(self, request):
        raise RuntimeError('no eyes today')

    monkeypatch.setattr(ObservationParser, 'read', broken)
    with running_server() as opened, caplog.at_level(logging.ERROR):
        opened.server._context.fault._seconds = 3600.0  # however slow the machine is
        for _ in range(5):
            with opened.client() as client:
                with pytest.raises(RuntimeError, match='the server failed: RuntimeError'):
                    client.infer(libero())
        assert caplog.text.count('a request failed') == 1


def test_failure_after_a_reply_ends_only_its_own_connection(monkeypatch, caplog):
    def broken(self, message):
        raise RuntimeError('no reply today')

    with running_server() as opened, opened.client() as good, opened.client() as bad:
        with monkeypatch.context() as today, caplog.at_level(logging.ERROR):
            today.setattr(ConnectionHandler, '_send', broken)
            bad.socket.send(packed(libero()))
            assert refused(bad) == 1011
        assert 'no reply today' in caplog.text
        assert good.infer(libero())['actions'].shape == (10, 7)
