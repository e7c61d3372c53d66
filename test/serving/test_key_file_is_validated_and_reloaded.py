"""The file of API keys is checked for format and permissions, and can be reloaded."""

import logging
import socket

import pytest
from server_cases import PATIENCE, RawClient, key_file, libero, page, running_server, until
from websockets.exceptions import ConnectionClosed, InvalidStatus

from embodied_kv.serving.websocket import admission
from embodied_kv.serving.websocket.config import ServerConfig
from embodied_kv.serving.websocket.credentials import read_keys

KEY = '0123456789abcdef'


def file(folder, text, mode=0o600):
    path = folder / 'keys'
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


def test_each_key_has_a_name_and_comments_are_none(tmp_path):
    text = f'# robots\n\n  arm-1 {KEY}1\narm-1\t{KEY}2\n  # and\ncell.b {KEY}ключ#\r\n'
    keys = {f'{KEY}1': 'arm-1', f'{KEY}2': 'arm-1', f'{KEY}ключ#': 'cell.b'}
    assert read_keys(file(tmp_path, text)) == keys


@pytest.mark.parametrize(
    'text, said',
    [
        ('\n# none\n', 'must have a key'),
        (f'{KEY}\n', 'line 1 must be a name and a key .*got 1 words.*NAME KEY'),
        (f'a {KEY} b\n', 'got 3 words'),
        (f'a/b {KEY}\n', 'letters, digits'),
        (f'{"n" * 65} {KEY}\n', 'letters, digits'),
        (f'# x\na {KEY[:15]}\n', r'line 2: the key of a must have at least 16.*got 15'),
        (f'a {KEY}\nb {KEY}\n', 'line 2: the key must differ'),
        (b'a \xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\n', 'UTF-8'),
    ],
)
def test_invalid_key_file_is_refused_with_the_format(tmp_path, text, said):
    with pytest.raises(ValueError, match=said) as refused:
        read_keys(file(tmp_path, text))
    assert KEY not in str(refused.value)


@pytest.mark.parametrize('mode', [0o640, 0o604, 0o644, 0o620, 0o660])
def test_a_file_that_others_can_access_is_refused(tmp_path, mode):
    with pytest.raises(ValueError, match='chmod 600'):
        read_keys(file(tmp_path, f'a {KEY}\n', mode))


def test_memory_has_a_part_for_each_key(tmp_path):
    path = file(tmp_path, ''.join(f'n{n} {KEY}{n}\n' for n in range(17)))
    with pytest.raises(ValueError, match=r'17 \* 32 \(got 512\); raise message_buffer_mib'):
        ServerConfig(api_keys_file=path).keys()
    ServerConfig(api_keys_file=path, message_buffer_mib=17 * 32).keys()


def test_non_ascii_key_is_accepted(tmp_path):
    path = file(tmp_path, f'guest gäst-ключ-{KEY}\n')
    with running_server(api_keys_file=path) as opened, RawClient(opened.port, f'gäst-ключ-{KEY}'):
        pass


def test_reload_disconnects_revoked_keys(tmp_path, caplog):
    path, old, kept = key_file(tmp_path, 'old', 'kept')
    with running_server(api_keys_file=path) as opened, caplog.at_level(logging.INFO):
        with opened.client(key=old) as revoked, opened.client(key=kept) as other:
            revoked.infer(libero() | {'session_id': 'arm'})
            file(tmp_path, f'kept {kept}\nnew {KEY}new\n')
            opened.server.reload()
            with pytest.raises(ConnectionClosed) as closed:
                revoked.socket.recv(PATIENCE)
            assert closed.value.rcvd.code == 1008
            assert other.infer(libero())['actions'].shape == (10, 7)
            with opened.client(key=f'{KEY}new') as newcomer:
                assert newcomer.infer(libero())['actions'].shape == (10, 7)
            with pytest.raises(InvalidStatus, match='401'):
                opened.client(key=old)
        until(lambda: opened.sessions.values()['sessions'] == 0)
        assert set(opened.sessions.of_tenants()) == {'kept', 'new'}
        assert 'keys reloaded: kept, new; connections closed: 1' in caplog.text
        assert old not in caplog.text


def test_invalid_file_does_not_change_the_keys(tmp_path, caplog):
    path, key = key_file(tmp_path, 'arm')
    with running_server(api_keys_file=path) as opened, opened.client(key=key) as client:
        file(tmp_path, 'arm short\n')
        opened.server.reload()
        until(lambda: 'the keys were not reloaded' in caplog.text)
        assert client.infer(libero())['actions'].shape == (10, 7)


def test_wrong_keys_are_slowed_and_logged_with_their_address(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(admission, 'WRONG_BURST', 1)
    monkeypatch.setattr(admission, 'WRONG_RATE', 1e-6)
    monkeypatch.setattr(admission, 'SLOWEST', 3600.0)
    path, key = key_file(tmp_path, 'arm')
    with running_server(api_keys_file=path) as opened:
        with pytest.raises(InvalidStatus, match='401'):
            opened.client(key='wrong')
        with socket.create_connection(('127.0.0.1', opened.port)) as guessing:
            guessing.sendall(b'GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n')
            with opened.client(key=key) as client:  # from the same address
                assert client.infer(libero())['actions'].shape == (10, 7)
            guessing.setblocking(False)
            with pytest.raises(BlockingIOError):
                guessing.recv(1)
        assert '127.0.0.1: missing or unknown key' in caplog.text


def test_names_of_keys_are_in_metrics_and_in_the_access_log(tmp_path, caplog):
    path, key = key_file(tmp_path, 'arm')
    with running_server(api_keys_file=path) as opened, caplog.at_level(logging.INFO):
        with opened.client(key=key) as client:
            client.infer(libero() | {'session_id': 'a'})
            found = page(opened.port, '/metrics', key)
            for line in ('connections', 'sessions', 'requests_total', 'ended_sessions'):
                count = 0.0 if line == 'ended_sessions' else 1.0
                assert f'embodied_kv_server_key_{line}{{key="arm"}} {count}' in found
            assert 'key_message_bytes{key="arm"}' in found
        until(lambda: 'connection of key arm from 127.0.0.1: 1 requests,' in caplog.text)
        assert 'end: 1000' in caplog.text and key not in caplog.text
