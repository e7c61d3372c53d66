"""`/metrics` counts outcomes; `/healthz` fails if no client can be served."""

import socket
import urllib.error
from contextlib import suppress

import pytest
from server_cases import PATIENCE, OldClient, busy, libero, page, running_server, until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from embodied_kv.serving.websocket.handler import ClientLeftError, ConnectionHandler


def tells(opened, *lines):
    """Wait for these lines of /metrics: a reply is counted after it was sent."""
    for line in lines:
        until(lambda line=line: line in page(opened.port, '/metrics'))


def test_metrics_count_requests_by_outcome():
    with running_server() as opened:
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


def test_monotonic_values_are_counters():
    with running_server() as opened, opened.client() as client:
        client.infer(libero())
        found = page(opened.port, '/metrics')
        counted = 'batches', 'served', 'engine_errors', 'overdue', 'capsules_given_up'
        for name in (*counted, 'prefills_shared', 'copies_without_room'):
            assert f'# TYPE embodied_kv_server_{name}_total counter' in found
        for name in ('sessions', 'waiting', 'capsule_bytes', 'seconds_saved', 'bytes_saved'):
            assert f'# TYPE embodied_kv_server_{name} gauge' in found
        assert 'embodied_kv_server_batches_total 1.0' in found
        assert 'embodied_kv_server_sessions 1.0' in found


def test_unsent_chunk_does_not_count_as_answered(monkeypatch):
    send = ConnectionHandler._send

    async def lost(self, message, *limit):
        if b'actions' in message:
            raise ClientLeftError('it takes no reply')
        await send(self, message, *limit)

    monkeypatch.setattr(ConnectionHandler, '_send', lost)
    with running_server() as opened, opened.client() as client:
        with pytest.raises(ConnectionClosed):
            client.infer(libero())
        tells(opened, 'requests_total{endpoint="infer",outcome="left"} 1.0')
        assert 'outcome="answered"' not in page(opened.port, '/metrics')


def test_rejections_are_counted_by_reason():
    with running_server(max_message_mib=1, max_connections=1) as opened:
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
        most = 17  # unopened sockets of one address
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


def test_health_depends_on_the_engine_thread():
    with running_server() as opened:
        with busy(opened):
            assert page(opened.port, '/healthz') == 'OK\n'  # a busy engine is healthy
        opened.sessions.stop, stop = lambda: None, opened.sessions.stop
        stop()
        assert "dispatcher's thread has ended" in unhealthy(opened)
        opened.device.stop()
        assert "engine's thread has ended" in unhealthy(opened)


def test_overdue_engine_is_unhealthy():
    with running_server() as opened:
        engine = opened.sessions._server.dispatcher.engines['here']
        engine.alive = False
        assert 'overdue' in unhealthy(opened)
        engine.alive = True
        assert page(opened.port, '/healthz') == 'OK\n'


def test_metrics_report_kv_by_pool():
    with running_server() as opened:
        with opened.client() as client:
            client.infer(libero())
            found = page(opened.port, '/metrics')
        for pool in opened.engine.kv.budget.pools:
            assert f'embodied_kv_server_kv_bytes{{pool="{pool.name}"}} {pool.bytes:.1f}' in found
            assert f'embodied_kv_server_kv_bytes_used{{pool="{pool.name}"}}' in found
        assert 'kv_bytes_used{pool="prefixes"} 0.0' not in found
