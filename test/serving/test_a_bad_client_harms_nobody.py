"""Clients that lie, flood, stall, leave or send too much: the others get every answer of theirs.

And nothing is left of those that went: no session, no row, no stream.
"""

import socket
import threading
import time

import numpy as np
import pytest
from door_cases import PATIENCE, OldClient, door, libero, packed
from websockets.exceptions import ConnectionClosed


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, 'it never came'
        time.sleep(0.01)


def nothing_is_left(opened):
    until(lambda: opened.sessions.values()['sessions'] == 0)
    until(lambda: opened.engine.kv.stats().leases == 0)
    until(lambda: opened.sessions.values()['robots'] == 0)
    assert opened.engine.kv.streams.live() == []
    opened.engine.kv.check_integrity()


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
            with pytest.raises(ConnectionClosed):
                for _ in range(1000):
                    bad.socket.send(bytes(2**21))
            assert refused(bad) == 1009
        assert good.infer(libero())['actions'].shape == (10, 7)


def test_one_that_leaves_while_it_is_served_takes_nobody_along():
    with door() as opened:
        with opened.client() as good:
            hold = threading.Event()
            opened.device.call(lambda: hold.wait(PATIENCE))
            leaving = [opened.client() for _ in range(3)]
            for client in leaving:
                client.socket.send(packed(libero()))
            until(lambda: opened.sessions.values()['waiting'] == 2)  # one is at the engine
            for client in leaving:
                client.socket.socket.shutdown(socket.SHUT_RDWR)  # without a word
            until(lambda: opened.sessions.values()['waiting'] == 0)
            hold.set()
            assert good.infer(libero())['actions'].shape == (10, 7)
        nothing_is_left(opened)


def test_one_that_floods_and_reads_nothing_waits_for_itself_alone():
    with door() as opened:
        with opened.client() as good:
            flooding = opened.client()
            gone = threading.Event()

            def flood():
                try:
                    while not gone.is_set():
                        flooding.socket.send(packed(libero()))
                except (ConnectionClosed, OSError):
                    pass

            thread = threading.Thread(target=flood)
            thread.start()
            try:
                for n in range(20):
                    assert good.infer(libero(n))['actions'].shape == (10, 7)
            finally:
                gone.set()
                flooding.socket.socket.shutdown(socket.SHUT_RDWR)
                thread.join(PATIENCE)
        nothing_is_left(opened)


def test_sockets_that_say_nothing_are_bounded():
    with door(connections=4) as opened, opened.client() as good:
        silent = [socket.create_connection(('127.0.0.1', opened.port)) for _ in range(40)]
        try:
            assert good.infer(libero())['actions'].shape == (10, 7)
            closed = 0
            for each in silent:
                each.settimeout(PATIENCE)
            for each in silent[-10:]:  # those beyond what is sensible, at once
                closed += _is_closed(each)
            assert closed == 10
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
        hold = threading.Event()
        opened.device.call(lambda: hold.wait(PATIENCE))
        with OldClient(opened.port) as client:
            with pytest.raises(RuntimeError, match='no answer within 0.2 s'):
                client.infer(libero())
        hold.set()
        nothing_is_left(opened)
