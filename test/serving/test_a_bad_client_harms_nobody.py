"""Clients that lie, flood, stall, leave or send too much: the others get every answer of theirs.

And nothing is left of those that went: no session, no row, no stream.
"""

import logging
import socket
import threading
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from door_cases import PATIENCE, busy, door, libero, packed, tabletop, until
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
    """Without a word."""
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
def test_a_bad_message_ends_its_own_connection_alone(message):
    with door() as opened:
        with opened.client() as good, opened.client() as bad:
            bad.socket.send(message)
            assert good.infer(libero())['actions'].shape == (10, 7)
            assert refused(bad) == 1011
            assert good.infer(libero())['actions'].shape == (10, 7)
        nothing_is_left(opened)


def test_a_message_that_is_too_long_is_not_even_kept():
    with door(message_mib=1) as opened, opened.client() as good:
        with opened.client() as bad:
            with suppress(ConnectionClosed):
                bad.socket.send(bytes(2**21))
            assert refused(bad) == 1009
        assert good.infer(libero())['actions'].shape == (10, 7)


def test_one_that_leaves_while_it_is_served_takes_nobody_along():
    with door() as opened:
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


def test_one_that_floods_and_reads_nothing_waits_for_itself_alone():
    with door() as opened:
        with opened.client() as good:
            flooding = opened.client()
            for n in range(50):
                flooding.socket.send(packed(libero(n)))
            for n in range(20):
                assert good.infer(libero(n))['actions'].shape == (10, 7)
            leave(flooding)
        nothing_is_left(opened)


def test_sockets_that_say_nothing_are_bounded():
    with door(connections=4) as opened, opened.client() as good:
        silent = [socket.create_connection(('127.0.0.1', opened.port)) for _ in range(40)]
        try:
            assert good.infer(libero())['actions'].shape == (10, 7)
            closed = 0
            for each in silent:
                each.settimeout(PATIENCE)
            for each in silent[:20]:  # the oldest, as there are more than is sensible
                closed += _is_closed(each)
            assert closed == 20
            with opened.client() as newcomer:
                assert newcomer.infer(libero())['actions'].shape == (10, 7)
            for each in silent[-10:]:
                each.setblocking(False)
                with pytest.raises(BlockingIOError):  # it is still there, and hears nothing
                    each.recv(1)
        finally:
            for each in silent:
                each.close()


def _is_closed(connection):
    try:
        return connection.recv(1) == b''
    except ConnectionResetError:
        return True


def test_a_request_that_takes_too_long_fails_and_is_forgotten():
    with door(request_seconds=0.2) as opened:
        with busy(opened), opened.client() as client:
            with pytest.raises(RuntimeError, match='no answer within 0.2 s'):
                client.infer(libero())
        nothing_is_left(opened)


def test_one_that_leaves_while_it_is_restored_keeps_no_row(monkeypatch):
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
    with door() as opened:
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


def test_one_that_leaves_while_it_asks_leaves_no_stream():
    with door('tabletop') as opened:
        for waits in (True, False):
            client = opened.client()
            client.infer(tabletop())
            with busy(opened) if waits else nullcontext():
                asked = {'endpoint': 'ask', 'question': 'Subtask:', 'max_tokens': 4096}
                client.socket.send(packed(asked))
                leave(client)
                until(lambda: opened.sessions.values()['sessions'] == 0)
            nothing_is_left(opened)


def test_half_a_character_is_refused_by_name_and_no_fault_of_the_server(caplog):
    with door() as opened, opened.client() as bad, caplog.at_level(logging.WARNING):
        with pytest.raises(RuntimeError, match=r'prompt must be valid UTF-8'):
            bad.infer(libero() | {'prompt': np.array('go \ud800')})
        assert 'Traceback' not in caplog.text


def test_what_fails_again_and_again_is_logged_once_in_a_while(monkeypatch, caplog):
    def broken(self, request):
        raise RuntimeError('no eyes today')

    monkeypatch.setattr(ObservationParser, 'read', broken)
    with door() as opened, caplog.at_level(logging.ERROR):
        opened.server._context.fault._seconds = 3600.0  # however slow the machine is
        for _ in range(5):
            with opened.client() as client:
                with pytest.raises(RuntimeError, match='the server failed: RuntimeError'):
                    client.infer(libero())
        assert caplog.text.count('a request failed') == 1


def test_what_fails_behind_a_reply_is_logged_and_ends_its_own_connection(monkeypatch, caplog):
    def broken(self, message):
        raise RuntimeError('no reply today')

    with door() as opened, opened.client() as good, opened.client() as bad:
        with monkeypatch.context() as today, caplog.at_level(logging.ERROR):
            today.setattr(ConnectionHandler, '_send', broken)
            bad.socket.send(packed(libero()))
            assert refused(bad) == 1011
        assert 'no reply today' in caplog.text
        assert good.infer(libero())['actions'].shape == (10, 7)
