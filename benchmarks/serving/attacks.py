"""Attacks on a policy server with API keys, one after the other, and their effect on another key.

The server is a process of its own. The key `good` has a client that sends a request once a period,
a session and a capsule. The key `bad` attacks from another process. Each attack is compared with a
control, in which as many processes use a CPU without attacking, so the ratio of the two p99 is the
effect of the attack. During an attack the resident memory may grow by twice the share of the key
`bad`: its part of `message_buffer_mib`, and the messages decoded from it. After the attack the
memory has to be within a tenth of its size before, and the session and the capsule of `good` have
to exist. If one of these rules is violated, the exit status is 1.

Physics: both keys share the processor cores of the machine. An attack that costs the server
nothing but the time of a core has a ratio of 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command
from benchmarks.common.workers import check_status
from benchmarks.serving.__main__ import request
from embodied_kv.serving.websocket import codec
from embodied_kv.serving.websocket.config import MIB

CONTRACT = 'tabletop'
KEYS = {'good': 'good-0123456789abcdef', 'bad': 'bad-0123456789abcdef'}
PATIENCE = 60.0  # s
GROWTH = 0.1  # maximum growth of the resident memory after an attack
REST = 60.0  # s until that is reached
HOME = {'session_id': 'arm', 'name': 'home'}
PING, FIRST, MORE = (bytes([kind, 0x80]) + bytes(4) for kind in (0x89, 0x02, 0x00))
LARGE = 31 * MIB
MEMORY = 128  # MiB, message_buffer_mib of the server


@contextmanager
def opened(port: int, name: str) -> Iterator[ClientConnection]:
    """Yield a connection with the key of that name, greeted by the server."""
    headers = {'Authorization': f'Api-Key {KEYS[name]}'}
    options = {'compression': None, 'max_size': None, 'ping_interval': None, 'proxy': None}
    limits = {'open_timeout': PATIENCE, 'close_timeout': 1.0}
    address = f'ws://127.0.0.1:{port}'
    with connect(address, additional_headers=headers, **options, **limits) as connection:
        connection.recv(PATIENCE)
        yield connection


def _raw(port: int) -> socket.socket:
    """Return an authenticated connection of the key `bad`."""
    raw = _dial(port, KEYS['bad'])
    raw.recv(65536)  # the answer to the handshake; frames follow it
    return raw


def _dial(port: int, key: str) -> socket.socket:
    raw = socket.create_connection(('127.0.0.1', port), PATIENCE)
    raw.sendall(
        b'GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n'
        b'Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n'
        + f'Authorization: Api-Key {key}\r\n\r\n'.encode()
    )
    raw.settimeout(2.0)
    return raw


def _send(port: int, first: bytes, block: bytes, most: int) -> None:
    with _raw(port) as raw:
        raw.sendall(first)
        for _ in range(most):
            raw.sendall(block)


def pings(port: int) -> None:
    """Send as many pings as the socket takes."""
    _send(port, b'', PING * 1000, 10_000)


def fragments(port: int) -> None:
    """Send one message of empty fragments that never ends."""
    _send(port, FIRST, MORE * 1000, 10_000)


def frames(port: int) -> None:
    """Send messages of as many small fragments as a message may have."""
    _send(port, b'', FIRST + MORE * 4000 + b'\x80\x80' + bytes(4), 100)


def large(port: int) -> None:
    """Send large messages that the server refuses, over four connections at a time."""
    message = b'\x82\xff' + LARGE.to_bytes(8, 'big') + bytes(4) + b'\xc4' + bytes(LARGE - 1)
    sockets = [_raw(port) for _ in range(4)]
    for raw in sockets:
        with suppress(OSError):
            raw.sendall(message)
    for raw in sockets:
        raw.close()


def held(port: int) -> None:
    """Send large messages without their last byte, more than the key may buffer."""
    head = b'\x82\xff' + LARGE.to_bytes(8, 'big') + bytes(4)
    _hold(port, head + bytes(LARGE - 1))


def held_fragments(port: int) -> None:
    """Send the messages of `held` in fragments of 32 KiB, short enough to be read uncharged."""
    size = 2**15
    first, more = (bytes([k, 0xFE]) + size.to_bytes(2, 'big') + bytes(4 + size) for k in (2, 0))
    _hold(port, first + more * (LARGE // size - 1))


def _hold(port: int, data: bytes) -> None:
    """Send data over eight connections, as far as it is read, and keep them for a moment."""
    sockets = [_raw(port) for _ in range(8)]
    for raw in sockets:
        raw.settimeout(0.5)
        with suppress(OSError):
            raw.sendall(data)
    time.sleep(1.0)
    for raw in sockets:
        raw.close()


def unread(port: int) -> None:
    """Send requests and pings without reading the replies."""
    ask = codec.pack({'endpoint': 'reset', 'session_id': 'unread'})
    frame = b'\x82\xfe' + len(ask).to_bytes(2, 'big') + bytes(4) + ask
    ping = b'\x89\xfd' + bytes(4 + 125)
    with _raw(port) as raw:
        for _ in range(50):
            raw.sendall(frame + ping)
            time.sleep(0.02)


def renames(port: int) -> None:
    """Open one session after another over one connection, without further requests."""
    with opened(port, 'bad') as connection:
        for n in range(20):
            reset = {'endpoint': 'reset', 'session_id': f's{time.monotonic_ns()}-{n}'}
            connection.send(codec.pack(reset))
            connection.recv(2.0)


def snapshots(port: int) -> None:
    """Take many capsules."""
    with opened(port, 'bad') as connection:
        who = {'session_id': f's{time.monotonic_ns()}'}
        connection.send(codec.pack(request(CONTRACT, 0) | who))
        connection.recv(PATIENCE)
        for n in range(50):
            connection.send(codec.pack({'endpoint': 'snapshot', 'name': f'c{n}'} | who))
            connection.recv(PATIENCE)


def silent(port: int) -> None:
    """Open sockets without sending a request."""
    sockets = [socket.create_connection(('127.0.0.1', port), PATIENCE) for _ in range(200)]
    time.sleep(0.5)
    for each in sockets:
        each.close()


def guesses(port: int) -> None:
    """Try wrong keys, sixteen at a time."""
    sockets = [_dial(port, f'wrong-{n}') for n in range(16)]
    for raw in sockets:
        with suppress(OSError):
            raw.recv(65536)
        raw.close()


def burn(port: int) -> None:
    """Keep a core busy without an attack, as the control."""
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass


ATTACKS: tuple[Callable[[int], None], ...] = (
    *(pings, fragments, frames, large, held, held_fragments, unread),
    *(renames, snapshots, silent, guesses),
)


def attack(way: Callable[[int], None], port: int, over: Event, begun: Synchronized) -> None:
    """Repeat an attack in a process of its own, whatever its result."""
    while not over.is_set():
        with begun.get_lock():
            begun.value += 1
        with suppress(OSError, EOFError, WebSocketException):  # its connection was closed
            way(port)


@contextmanager
def served(preset: str) -> Iterator[tuple[int, int]]:
    """Yield the port and process id of a server. Raises BenchmarkError if it does not start."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        file, log = Path(folder) / 'keys', Path(folder) / 'log'
        file.touch(mode=0o600)
        file.write_text(''.join(f'{name} {key}\n' for name, key in KEYS.items()))
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
        free.close()
        options = {'contract': CONTRACT, 'preset': preset, 'checkpoint': 'random'}
        options |= {
            'port': port,
            'api_keys_file': file,
            'all_capsules_mib': 16,
            'message_buffer_mib': MEMORY,
        }
        words = [word for name, value in options.items() for word in (f'--{name}', str(value))]
        with log.open('w') as out:
            process = subprocess.Popen(
                [sys.executable, '-m', 'embodied_kv.serving', *words], stdout=out, stderr=out
            )
        try:
            end = time.monotonic() + 5 * PATIENCE
            while 'serving ' not in log.read_text():
                if process.poll() is not None or time.monotonic() > end:
                    raise BenchmarkError(f'no server: {log.read_text()[-500:]}')
                time.sleep(0.2)
            yield port, process.pid
            if process.poll() is not None:
                words = log.read_text()[-500:]
                raise RuntimeError(f'the server ended with status {process.poll()}: {words}')
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            process.kill()


def resident(process: int) -> float:
    """Return the resident memory (MiB) of a process."""
    pages = int(Path(f'/proc/{process}/statm').read_text().split()[1])
    return pages * os.sysconf('SC_PAGE_SIZE') / MIB


def _p99(
    port: int, process: int, way: Callable[[int], None], args: argparse.Namespace
) -> tuple[float, int, float]:
    """Return the p99 (ms) of the good client during an attack.

    In addition, return the number of attacks begun, and the maximum resident memory (MiB).
    """
    spawn = multiprocessing.get_context('spawn')
    over, begun = spawn.Event(), spawn.Value('i', 0)
    given = way, port, over, begun
    others = [spawn.Process(target=attack, args=given, daemon=True) for _ in range(args.attackers)]
    for each in others:
        each.start()
    while begun.value < args.attackers:
        if not all(each.is_alive() for each in others):
            raise BenchmarkError('an attacker did not start')
        time.sleep(0.1)
    message, times, most = codec.pack(request(CONTRACT, 0)), [], 0.0
    with opened(port, 'good') as good:
        time.sleep(args.warm)
        end = time.monotonic() + args.seconds
        while (began := time.monotonic()) < end:
            good.send(message)
            if isinstance(reply := good.recv(PATIENCE), str):
                raise BenchmarkError(f'the good client was refused: {reply}')
            times.append(time.monotonic() - began)
            most = max(most, resident(process))
            time.sleep(max(0.0, began + args.period - time.monotonic()))
    over.set()
    for each in others:
        each.join(10.0)
        status = each.exitcode  # None during a long attack
        each.kill()
        each.join()
        check_status(f'the attacker {way.__name__}', status)
    return float(np.percentile(times, 99) * 1e3), begun.value, most


def _kept(port: int) -> bool:
    """Return whether the good client's session has its capsule."""
    with opened(port, 'good') as good:
        good.send(codec.pack({'endpoint': 'restore'} | HOME))
        return 'error' not in codec.unpack(good.recv(PATIENCE))


def run(args: argparse.Namespace) -> dict:
    """Run each attack after a control of its own, and return all figures."""
    rows, broken = [], []
    with served(args.preset) as (port, process):
        with opened(port, 'good') as good:
            for wish in (request(CONTRACT, 0), {'endpoint': 'snapshot'}):
                good.send(
                    codec.pack(wish | (HOME if 'endpoint' in wish else {'session_id': 'arm'}))
                )
                good.recv(PATIENCE)
        _p99(port, process, large, args)  # warm-up: one-time allocations
        time.sleep(5.0)
        for way in [way for way in ATTACKS if way.__name__ in (args.only or way.__name__)]:
            before = resident(process)
            control, *_ = _p99(port, process, burn, args)
            beside, rounds, most = _p99(port, process, way, args)
            end = time.monotonic() + REST
            while (after := resident(process)) > before * (1 + GROWTH) and time.monotonic() < end:
                time.sleep(0.5)
            row = {
                'attack': way.__name__,
                'rounds': rounds,
                'control_p99_ms': control,
                'p99_ms': beside,
                'ratio': beside / control,
                'rss_before_mib': before,
                'rss_most_mib': most,
                'rss_after_mib': after,
                'kept': _kept(port),
            }
            rows.append(row)
            if most > before * (1 + GROWTH) + 2 * MEMORY / len(KEYS):
                broken.append(f'{way.__name__}: {before:.0f} MiB before, {most:.0f} MiB during it')
            if after > before * (1 + GROWTH):
                broken.append(f'{way.__name__}: {before:.0f} MiB before, {after:.0f} MiB after')
            if not row['kept']:
                broken.append(f'{way.__name__}: the capsule of another key is gone')
    if not args.json:
        report.show(f'attacks of one key on another, {args.preset}', rows, '; '.join(broken))
    return {'preset': args.preset, 'attacks': rows, 'broken': broken}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--preset', default='tiny', help='model dimensions by name')
    names = [way.__name__ for way in ATTACKS]
    parser.add_argument('--only', nargs='*', choices=names, help='these attacks')
    parser.add_argument('--seconds', type=float, default=10.0, help='of each attack and control')
    parser.add_argument(
        '--warm', type=float, default=1.0, help='s of an attack before it is measured'
    )
    parser.add_argument('--attackers', type=int, default=1, help='processes')
    parser.add_argument('--period', type=float, default=0.05, help='s between two requests')


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; the exit status is 1 if a rule is violated."""
    broken: list[str] = []

    def judged(args: argparse.Namespace) -> dict:
        found = run(args)
        broken.extend(found['broken'])
        return found

    command('serving.attacks', __doc__, add_arguments, judged)(arguments)
    if broken:
        raise SystemExit('\n'.join(['serving.attacks: broken laws', *broken]))


if __name__ == '__main__':
    main()
