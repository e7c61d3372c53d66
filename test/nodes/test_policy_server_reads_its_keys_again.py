"""SIGHUP makes the process of the node `policy_server` read its keys again, and not end."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

rclpy = pytest.importorskip('rclpy', reason='no ROS 2 is sourced: run through tools/env')

from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402
from websockets.sync.client import connect  # noqa: E402

pytestmark = pytest.mark.timeout(900)
WAIT = 240.0  # s, for what takes seconds where nothing else runs
OLD, KEPT, NEW = (f'{name}-0123456789abcdef' for name in ('old', 'kept', 'new'))
PARAMETERS = (
    'contract:=tabletop',
    'preset:=tiny',
    'checkpoint:=random',
    'port:=0',
    'engine.robots:=1',
    'engine.rows:=6',
    'engine.reserved_rows:=2',
    'engine.streams:=1',
    'engine.compressed_rows:=0',
)


class Process:
    """The executable with these parameters, and its log."""

    def __init__(self, folder, *parameters):
        self._log = folder / 'log'
        given = [word for p in (*PARAMETERS, *parameters) for word in ('-p', p)]
        command = [sys.executable, '-m', 'embodied_kv.nodes.policy_server', '--ros-args', *given]
        with self._log.open('w') as log:
            self.handle = subprocess.Popen(
                [*command, '-r', f'__ns:=/{folder.name}'],
                stdout=log,
                stderr=log,
                env={**os.environ, 'OMP_NUM_THREADS': '1'},
            )

    def found(self, pattern):
        """Wait for a line of the log."""
        end = time.monotonic() + WAIT
        while not (match := re.search(pattern, self._log.read_text())):
            assert self.handle.poll() is None and time.monotonic() < end, self._log.read_text()
            time.sleep(0.05)
        return match


@contextmanager
def process(*arguments):
    started = Process(*arguments)
    try:
        yield started
        started.handle.terminate()
        assert started.handle.wait(WAIT) == 0
    finally:
        started.handle.kill()
        started.handle.wait(WAIT)


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
    with process(tmp_path, f'api_keys:={keys}') as server:
        port = int(server.found(r'serving on ws://127.0.0.1:(\d+)')[1])
        with connected(port, OLD) as revoked, connected(port, KEPT) as other:
            assert revoked.recv(WAIT) and other.recv(WAIT)
            with pytest.raises(InvalidStatus, match='401'):
                connected(port, NEW)
            write(keys, kept=KEPT, new=NEW)
            server.handle.send_signal(signal.SIGHUP)
            with pytest.raises(ConnectionClosed) as closed:
                revoked.recv(WAIT)
            assert closed.value.rcvd.code == 1008
            with pytest.raises(InvalidStatus, match='401'):
                connected(port, OLD)
            with connected(port, NEW) as newcomer:
                assert newcomer.recv(WAIT)
            assert other.ping().wait(WAIT)
        server.found('keys reloaded: kept, new; connections closed: 1')
        server.found('connection of key new from 127.0.0.1: 0 requests')
