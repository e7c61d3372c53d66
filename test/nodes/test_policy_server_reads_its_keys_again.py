"""SIGHUP makes the process of the node `policy_server` reload its keys, and does not end it."""

import re
import signal
import time
from contextlib import contextmanager

import pytest

rclpy = pytest.importorskip('rclpy', reason='no ROS 2 is sourced: run through tools/env')

from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402
from websockets.sync.client import connect  # noqa: E402

from benchmarks.watchdog.stand_ins import Process  # noqa: E402

pytestmark = pytest.mark.timeout(900)
WAIT = 240.0  # s; on an idle machine it takes seconds
OLD, KEPT, NEW = (f'{name}-0123456789abcdef' for name in ('old', 'kept', 'new'))
PARAMETERS = (
    'contract:=tabletop',
    'preset:=tiny',
    'checkpoint:=random',
    'port:=0',
    'engine.max_batch_robots:=1',
    'engine.rows:=6',
    'engine.reserved_rows:=2',
    'engine.streams:=1',
    'engine.compressed_rows:=0',
)


@contextmanager
def process(folder, *parameters):
    given = [word for p in (*PARAMETERS, *parameters) for word in ('-p', p)]
    given += ['-r', f'__ns:=/{folder.name}']
    started = Process('embodied_kv.nodes.policy_server', '--ros-args', *given)
    try:
        yield started
        started.signal(signal.SIGTERM)
        assert started.wait(WAIT) == 0
    finally:
        started.close()


def found(process, pattern):
    """Wait for a log line that matches; return the match."""
    end = time.monotonic() + WAIT
    while not (match := re.search(pattern, process.text)):
        assert process.lives and time.monotonic() < end, process.text
        time.sleep(0.05)
    return match


def write(file, **keys):
    file.touch(mode=0o600)
    file.write_text(''.join(f'{name} {key}\n' for name, key in keys.items()))


def connected(port, key):
    headers = {'Authorization': f'Api-Key {key}'}
    url = f'ws://127.0.0.1:{port}'
    return connect(url, additional_headers=headers, open_timeout=WAIT, proxy=None)


def test_a_key_that_was_removed_is_cut_off_and_a_new_one_opens(tmp_path):
    keys = tmp_path / 'keys'
    write(keys, old=OLD, kept=KEPT)
    with process(tmp_path, f'api_keys_file:={keys}') as server:
        port = int(found(server, r'serving on ws://127.0.0.1:(\d+)')[1])
        with connected(port, OLD) as revoked, connected(port, KEPT) as other:
            assert revoked.recv(WAIT) and other.recv(WAIT)
            with pytest.raises(InvalidStatus, match='401'):
                connected(port, NEW)
            write(keys, kept=KEPT, new=NEW)
            server.signal(signal.SIGHUP)
            with pytest.raises(ConnectionClosed) as closed:
                revoked.recv(WAIT)
            assert closed.value.rcvd.code == 1008
            with pytest.raises(InvalidStatus, match='401'):
                connected(port, OLD)
            with connected(port, NEW) as newcomer:
                assert newcomer.recv(WAIT)
            assert other.ping().wait(WAIT)
        found(server, 'keys reloaded: kept, new; connections closed: 1')
        found(server, 'connection of key new from 127.0.0.1: 0 requests')
