"""`/metrics` counts what became of whom; `/healthz` is no OK where nobody could be served."""

import socket
import urllib.error
from contextlib import suppress

import pytest
from door_cases import PATIENCE, OldClient, busy, door, libero, page, until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from embodied_kv.serving.websocket.client import Client, Left


def tells(opened, *lines):
    """Soon: a reply is counted once it has been sent."""
    for line in lines:
        until(lambda line=line: line in page(opened.port, '/metrics'))


def test_metrics_say_what_became_of_requests():
    with door() as opened:
        with opened.client() as client:
            client.infer(libero())
            client.infer(libero() | {'endpoint': 'reset'})
        with OldClient(opened.port) as client, pytest.raises(RuntimeError):
            client.infer({})
        tells(
            opened,
            'requests_total{endpoint="infer",outcome="answered"} 1.0',
            'requests_total{endpoint="infer",outcome="refused"} 1.0',
            'requests_total{endpoint="reset",outcome="answered"} 1.0',
            'infer_seconds_count 1.0',
        )


def test_what_only_rises_is_a_counter():
    with door() as opened, opened.client() as client:
        client.infer(libero())
        found = page(opened.port, '/metrics')
        for name in ('batches', 'served', 'engine_errors', 'overdue', 'capsules_given_up'):
            assert f'# TYPE embodied_kv_server_{name}_total counter' in found
        for name in ('sessions', 'waiting', 'capsule_bytes'):
            assert f'# TYPE embodied_kv_server_{name} gauge' in found
        assert 'embodied_kv_server_batches_total 1.0' in found
        assert 'embodied_kv_server_sessions 1.0' in found


def test_a_chunk_that_is_not_taken_is_none_that_was_answered(monkeypatch):
    send = Client._send

    async def lost(self, message, *limit):
        if b'actions' in message:
            raise Left('it takes no reply')
        await send(self, message, *limit)

    monkeypatch.setattr(Client, '_send', lost)
    with door() as opened, opened.client() as client:
        with pytest.raises(ConnectionClosed):
            client.infer(libero())
        tells(opened, 'requests_total{endpoint="infer",outcome="left"} 1.0')
        assert 'outcome="answered"' not in page(opened.port, '/metrics')


def test_whoever_is_thrown_out_is_counted_with_the_reason():
    with door(message_mib=1, connections=1) as opened:
        with pytest.raises(InvalidStatus, match='403'):
            connect(
                f'ws://127.0.0.1:{opened.port}/',
                origin='http://evil.example',
                proxy=None,
                open_timeout=PATIENCE,
            )
        with opened.client() as client:
            with suppress(ConnectionClosed):
                client.socket.send(bytes(2**21))
            with pytest.raises(ConnectionClosed):
                client.socket.recv(PATIENCE)
        until(lambda: opened.server.counts()['sockets'] == 0)
        most = 17  # sockets of one address that have not opened
        silent = [socket.create_connection(('127.0.0.1', opened.port)) for _ in range(most + 3)]
        for one in silent[:3]:
            one.settimeout(PATIENCE)
            with suppress(ConnectionResetError):
                assert one.recv(1) == b''
        for one in silent:
            one.close()
        until(lambda: opened.server.counts()['sockets'] == 0)
        tells(
            opened,
            'rejected_total{reason="browser"} 1.0',
            'rejected_total{reason="message"} 1.0',
            'rejected_total{reason="sockets"} 3.0',
        )


def unhealthy(opened):
    with pytest.raises(urllib.error.HTTPError) as told:
        page(opened.port, '/healthz')
    assert told.value.code == 503
    return told.value.read().decode()


def test_health_is_that_of_the_engines_thread():
    with door() as opened:
        with busy(opened):
            assert page(opened.port, '/healthz') == 'OK\n'  # it may have much to do
        opened.sessions.stop, stop = lambda: None, opened.sessions.stop
        stop()
        assert "dispatcher's thread has ended" in unhealthy(opened)
        opened.device.stop()
        assert "engine's thread has ended" in unhealthy(opened)


def test_an_engine_that_owes_an_answer_is_not_well():
    with door() as opened:
        engine = opened.sessions._server.dispatcher.engines['here']
        engine.alive = False
        assert 'overdue' in unhealthy(opened)
        engine.alive = True
        assert page(opened.port, '/healthz') == 'OK\n'


def test_metrics_say_what_each_pool_of_kv_holds():
    with door() as opened:
        with opened.client() as client:
            client.infer(libero())
            found = page(opened.port, '/metrics')
        for pool in opened.engine.kv.budget.pools:
            assert f'embodied_kv_server_kv_bytes{{pool="{pool.name}"}} {pool.bytes:.1f}' in found
            assert f'embodied_kv_server_kv_bytes_used{{pool="{pool.name}"}}' in found
        assert 'kv_bytes_used{pool="prefixes"} 0.0' not in found
