"""Pings, fragments and announced bytes of a client are bounded with any release of websockets."""

import gc
import time
import weakref
from contextlib import contextmanager

import pytest
from server_cases import PATIENCE, RawClient, key_file, libero, packed, page, running_server, until

from embodied_kv.serving.websocket import accounts, admission, metered_connection, server
from embodied_kv.serving.websocket.accounts import Bucket, MessagePool
from embodied_kv.serving.websocket.handler import ConnectionHandler
from embodied_kv.serving.websocket.observation_parser import RefusedError

MIB = 2**20
PING, PONG = b'\x89\x80' + bytes(4), b'\x8a\x80' + bytes(4)
FIRST, MORE, LAST = (bytes([kind, 0x80]) + bytes(4) for kind in (0x02, 0x00, 0x80))


def announced(size):
    """Return the header of a binary message of `size` bytes, masked with zeros."""
    return b'\x82\xff' + size.to_bytes(8, 'big') + bytes(4)


def served(client):
    return client.infer(libero())['actions'].shape == (10, 7)


@pytest.mark.parametrize('frame', [PING, PONG], ids=['pings', 'pongs'])
def test_a_flood_of_control_frames_ends_its_own_connection(frame):
    with running_server() as opened, opened.client() as good, RawClient(opened.port) as bad:
        bad.socket.sendall(frame * 20_000)
        assert bad.closed() == 1008
        assert served(good)


def test_some_pings_at_once_are_answered():
    with running_server() as opened, opened.client() as client:
        for answered in [client.socket.ping() for _ in range(50)]:
            assert answered.wait(240)
        assert served(client)


def test_endless_fragments_end_their_own_connection():
    with running_server() as opened, opened.client() as good, RawClient(opened.port) as bad:
        bad.socket.sendall(FIRST + MORE * 5000)
        assert bad.closed() == 1009
        assert served(good)


def test_a_message_in_fragments_is_read():
    request = packed(libero())
    with running_server() as opened, RawClient(opened.port) as client:
        client.socket.sendall(FIRST + MORE * 200)
        client.socket.sendall(b'\x80\xff' + len(request).to_bytes(8, 'big') + bytes(4) + request)
        until(lambda: opened.sessions.values().get('served') == 1)


def test_many_frames_do_not_block_others(monkeypatch):
    read = []
    monkeypatch.setattr(metered_connection, 'TURN', 4)
    received = metered_connection.MeteredConnection.data_received

    def spied(self, data):
        before = self.account.frames if self.account else 0
        received(self, data)
        read.append((self.account.frames if self.account else 0) - before)

    monkeypatch.setattr(metered_connection.MeteredConnection, 'data_received', spied)
    with running_server() as opened, RawClient(opened.port) as client:
        client.socket.sendall(FIRST + MORE * 100)
        until(lambda: sum(read) >= 101)
        assert max(read) <= 5


def test_closed_client_may_not_keep_sending(monkeypatch):
    monkeypatch.setattr(metered_connection, 'ABUSED', 1000)
    with running_server() as opened, RawClient(opened.port) as bad, pytest.raises(ConnectionError):
        bad.socket.sendall(PING * 1000)
        for _ in range(1000):
            bad.socket.sendall(bytes(MIB))


# -------------------------------------------------------------------- bytes of messages


def test_messages_wait_for_free_bytes():
    granted, pool = [], MessagePool(10)
    assert pool.take(6, granted.append)
    assert not pool.take(5, granted.append) and not pool.take(1, granted.append)  # in order
    pool.give(6)
    assert granted == [5, 1] and pool.used == 6
    assert not pool.take(7, granted.append)
    pool.forget(granted.append)
    pool.give(6)
    assert pool.used == 0 and granted == [5, 1]


def test_a_rate_has_a_burst_and_a_bounded_debt():
    now = [0.0]
    bucket = Bucket(2.0, 3, lambda: now[0])
    assert [bucket.take() for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    assert max(bucket.take() for _ in range(100)) <= 1.5
    now[0] = 100.0
    assert [bucket.take() for _ in range(4)] == [0, 0, 0, 0.5]


def test_an_announced_message_waits_while_others_take_all_bytes():
    with (
        running_server(max_message_mib=1, message_buffer_mib=1) as opened,
        RawClient(opened.port) as slow,
    ):
        slow.socket.sendall(announced(MIB) + bytes(1000))
        pool = opened.server._admission.accounts.of('').pool
        until(lambda: pool.used == MIB)
        with RawClient(opened.port) as waiting:
            waiting.say(bytes(MIB // 2))
            until(lambda: len(pool._waiting) == 1)
            slow.socket.close()
            assert waiting.closed() == 1011  # the message was read; it is no request
        until(lambda: pool.used == 0)


def test_small_fragments_are_counted_together():
    with running_server(max_message_mib=1) as opened, RawClient(opened.port) as client:
        pool = opened.server._admission.accounts.of('').pool
        client.socket.sendall(FIRST)
        for _ in range(8):
            client.socket.sendall(
                b'\x00' + announced(metered_connection.SMALL)[1:] + bytes(metered_connection.SMALL)
            )
        until(lambda: pool.used == 7 * metered_connection.SMALL)
        client.socket.sendall(LAST)
        assert client.closed() == 1011  # the message was read; it is no request
        until(lambda: pool.used == 0)


def test_bytes_of_keys_are_separate(tmp_path):
    file, greedy, modest = key_file(tmp_path, 'greedy', 'modest')
    with running_server(api_keys_file=file, max_message_mib=1, message_buffer_mib=2) as opened:
        with RawClient(opened.port, greedy) as slow, RawClient(opened.port, greedy) as more:
            for each in (slow, more):
                each.socket.sendall(announced(MIB) + bytes(1000))
            accounts = opened.server._admission.accounts
            until(lambda: len(accounts.of('greedy').pool._waiting) == 1)
            with RawClient(opened.port, modest) as other:
                other.say(bytes(MIB))
                assert other.closed() == 1011
            assert accounts.of('greedy').pool.used == MIB


def test_fragments_that_wait_for_each_other_are_refused():
    with running_server(max_message_mib=1, message_buffer_mib=1) as opened:
        with RawClient(opened.port) as one, RawClient(opened.port) as other:
            pool = opened.server._admission.accounts.of('').pool
            part = MIB * 3 // 8
            for number, each in enumerate((one, other), 1):
                each.socket.sendall(b'\x02' + announced(part)[1:] + bytes(part))
                until(lambda number=number: pool.used == number * part)
            one.socket.sendall(b'\x80' + announced(part)[1:])
            assert one.closed() == 1013
            until(lambda: pool.used == part)


def test_message_with_bytes_does_not_wait():
    with running_server(max_message_mib=1, message_buffer_mib=1) as opened:
        with RawClient(opened.port) as one, RawClient(opened.port) as other:
            pool, part = opened.server._admission.accounts.of('').pool, MIB * 5 // 8
            one.socket.sendall(b'\x02' + announced(part)[1:] + bytes(part))
            until(lambda: pool.used == part)
            other.socket.sendall(announced(part) + bytes(1000))
            until(lambda: len(pool._waiting) == 1)
            small = MIB // 4
            one.socket.sendall(b'\x80' + announced(small)[1:] + bytes(small))
            assert one.closed() == 1011  # the message was read; it is no request
            until(lambda: pool.used == part and not pool._waiting)


def test_frames_after_a_refused_handshake_are_dropped(tmp_path):
    file, _ = key_file(tmp_path, 'one')
    with running_server(api_keys_file=file) as opened:
        with pytest.raises(AssertionError, match='401'):
            RawClient(opened.port, 'wrong', first=PING * 100)
        until(lambda: opened.server.counts()['sockets'] == 0)


@contextmanager
def stuck(opened):
    """Yield a client that reads nothing, and for which the server pauses writing."""
    with RawClient(opened.port) as client:
        until(lambda: opened.server._context.handlers)
        (served,) = opened.server._context.handlers
        opened.server._loop.call_soon_threadsafe(served._connection.pause_writing)
        yield client


def test_client_that_reads_nothing_is_disconnected():
    with running_server(client_timeout=1.0) as opened, stuck(opened):
        until(lambda: opened.server.counts()['sockets'] == 0)


def test_client_that_reads_nothing_does_not_delay_shutdown(monkeypatch):
    monkeypatch.setattr(server, 'GOODBYE_SECONDS', 0.5)
    with running_server(client_timeout=10 * PATIENCE) as opened, stuck(opened):
        began = time.monotonic()
        opened.server.stop()
        assert time.monotonic() - began < PATIENCE


class Witness:
    """An object that lives as long as the stack frame that created it."""


def test_refused_message_is_freed(monkeypatch):
    alive = []

    def refuse(self, message):
        witness = Witness()
        alive.append(weakref.ref(witness))
        try:
            raise ValueError('no request')
        except ValueError as error:
            raise RefusedError('no request') from error

    monkeypatch.setattr(ConnectionHandler, '_read', refuse)
    with running_server() as opened:
        gc.disable()
        try:
            with opened.client() as bad, pytest.raises(RuntimeError, match='no request'):
                bad.infer(libero())
            until(lambda: alive and alive[0]() is None)
        finally:
            gc.enable()


def test_a_key_that_connects_too_often_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(accounts, 'OPENING_BURST', 2)
    monkeypatch.setattr(accounts, 'OPENING_RATE', 1e-6)
    monkeypatch.setattr(admission, 'SLOWEST', 0.01)
    file, often, other = key_file(tmp_path, 'often', 'other')
    with running_server(api_keys_file=file) as opened:
        for _ in range(2):
            opened.client(key=often).__exit__()
        with pytest.raises(Exception, match='503'):
            opened.client(key=often)
        with pytest.raises(Exception, match='503'):
            page(opened.port, '/metrics', often)
        with opened.client(key=other) as client:
            assert served(client)


@pytest.mark.parametrize('tail', [LAST, b''], ids=['whole', 'cut'])
def test_bytes_of_a_client_are_freed_when_it_leaves(tail):
    with running_server(max_message_mib=1) as opened:
        pool = opened.server._admission.accounts.of('').pool
        with RawClient(opened.port) as client:
            client.socket.sendall(b'\x02' + announced(MIB // 2)[1:] + bytes(MIB // 2) + tail)
            until(lambda: pool.used or not opened.server.counts()['sockets'])
        until(lambda: pool.used == 0)
