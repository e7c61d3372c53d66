"""A policy server with a tiny engine, and a client that implements openpi's protocol."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import msgpack
import numpy as np
import torch
from websockets.sync.client import connect

from embodied_kv.capsule.capsule import Boundary, Capsule
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.policy import Policy
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.websocket.config import ServerConfig
from embodied_kv.serving.websocket.server import PolicyServer
from embodied_kv.serving.websocket.sessions import Sessions

PATIENCE = 240.0  # s; maximum time of each wait
ENGINE = {
    'rows': 24,
    'max_batch_robots': 4,
    'reserved_rows': 12,
    'streams': 4,
    'compressed_rows': 0,
    'euler_steps': 4,
    'min_euler_steps': 2,
    'time_budget': False,
}
SLOW = Profile('tiny', (1, 2, 4), (1e3, 1e3, 1e3), 1000)  # s, above those of any machine


def packed(value):
    """Return a message with numpy arrays and scalars, packed as by openpi's client."""

    def default(x):
        if isinstance(x, np.ndarray):
            whole = {b'__ndarray__': True, b'data': x.tobytes()}
            return {**whole, b'dtype': x.dtype.str, b'shape': x.shape}
        return {b'__npgeneric__': True, b'data': x.item(), b'dtype': x.dtype.str}

    return msgpack.packb(value, default=default)


def unpacked(data):
    def hook(x):
        if b'__ndarray__' in x:
            return np.ndarray(x[b'shape'], np.dtype(x[b'dtype']), x[b'data'])
        return x

    return msgpack.unpackb(data, object_hook=hook)


class OldClient:
    """A client as openpi's: it receives metadata, then sends one request after another."""

    def __init__(self, port, key='', path='/'):
        headers = {'Authorization': f'Api-Key {key}'} if key else None
        self._open = ExitStack()
        opening = connect(
            f'ws://127.0.0.1:{port}{path}',
            compression=None,
            max_size=None,
            additional_headers=headers,
            open_timeout=PATIENCE,
            ping_timeout=None,
            close_timeout=PATIENCE,
            proxy=None,
        )
        self.socket = self._open.enter_context(opening)
        self.metadata = unpacked(self.socket.recv(PATIENCE))

    def infer(self, request):
        self.socket.send(packed(request))
        reply = self.socket.recv(PATIENCE)
        if isinstance(reply, str):
            raise RuntimeError(reply)
        return unpacked(reply)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._open.close()


def key_file(folder, *names):
    """Write a file with a key for each name; return its path and the keys."""
    keys = [f'{name}-0123456789abcdef' for name in names]
    file = folder / 'keys'
    file.touch(mode=0o600)
    file.write_text(''.join(f'{name} {key}\n' for name, key in zip(names, keys, strict=True)))
    return str(file), *keys


def capsule(name, size):
    """Return a capsule of `size` bytes including its metadata; at least 2000."""

    def of(length):
        tensors = {'a/x': torch.zeros(length, dtype=torch.uint8)}
        return Capsule(name, Boundary('s', 1, 0), 'f', tensors, {}, created=1.0)

    made = of(2 * size - of(size).bytes)
    assert made.bytes == size
    return made


def upgrade(key=''):
    """Return the upgrade request of a websocket client."""
    return (
        b'GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n'
        + (f'Authorization: Api-Key {key}\r\n'.encode() if key else b'')
        + b'Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n'
    )


class RawClient:
    """A websocket client on a plain socket, which answers neither pings nor close frames.

    first: bytes that are sent together with the upgrade request.
    """

    def __init__(self, port, key='', first=b''):
        self.socket = socket.create_connection(('127.0.0.1', port))
        self.socket.settimeout(PATIENCE)
        self.socket.sendall(upgrade(key) + first)
        status = self.socket.recv(12)
        assert status == b'HTTP/1.1 101', status

    def say(self, payload):
        """Send a binary message, masked with zeros."""
        head = b'\x82\xff' + len(payload).to_bytes(8, 'big') + bytes(4)
        self.socket.sendall(head + payload)

    def closed(self):
        """Read until the connection ends; return its close code, None without one."""
        data = b''
        with suppress(ConnectionResetError):
            while got := self.socket.recv(65536):
                data += got
        at = data.rfind(b'\x88')
        return int.from_bytes(data[at + 2 : at + 4], 'big') if at >= 0 else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


class RunningServer:
    """A running policy server with its engine, its sessions and its port."""

    def __init__(self, robot, config, engine, resize, scheduling, memory=None, cloud=None):
        self.robot = Embodiment.load(robot)
        policy = Policy.random(self.robot.adapted(TINY), seed=1)
        if resize is not None:
            policy = replace(policy, processing=replace(policy.processing, resize=resize))
        sizes = EngineConfig(**(ENGINE | engine))
        self.engine = Engine(policy, sizes, period=1e4)  # s; longer than any latency
        self._listeners = []
        self.device = EngineThread(self.engine, self._hear)
        self.device.start()
        shared = config.get('all_capsules_mib', 256)
        self.sessions = Sessions(
            self.engine, self.device, SLOW, 4, 64, shared, scheduling=scheduling, cloud=cloud
        )
        self._listeners.append(self.sessions.on_deltas)
        self.sessions.start()
        settings = {'port': 0, 'request_timeout': PATIENCE, 'max_request_rate': 10_000.0} | config
        self.memories = memory and memory(self.device, self.engine.kv.budget)
        self.server = PolicyServer(
            ServerConfig(**settings), self.sessions, self.robot.contract, self.memories
        )
        self.port = self.server.start()

    def _hear(self, deltas):
        for listener in self._listeners:
            listener(deltas)

    def client(self, **options):
        return OldClient(self.port, **options)

    def stop(self):
        self.server.stop()
        if self.memories:
            self.memories.close()
        self.sessions.stop()
        self.device.stop()


@contextmanager
def running_server(
    robot='libero', engine=None, resize=None, scheduling=None, memory=None, cloud=None, **config
):
    opened = RunningServer(robot, config, engine or {}, resize, scheduling, memory, cloud)
    try:
        yield opened
    finally:
        opened.stop()


@contextmanager
def busy(opened):
    """Keep the engine thread busy until the block ends."""
    hold = threading.Event()
    opened.device.call(lambda: hold.wait(PATIENCE))
    try:
        yield
    finally:
        hold.set()


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, 'it never came'
        time.sleep(0.01)


def page(port, path, key=''):
    request = urllib.request.Request(f'http://127.0.0.1:{port}{path}')
    if key:
        request.add_header('Authorization', f'Api-Key {key}')
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=PATIENCE) as found:
        return found.read().decode()


def picture(random, *shape):
    return random.integers(0, 256, shape, dtype=np.uint8)


def droid(n=0):
    """Return a request as in openpi's examples/droid."""
    random = np.random.default_rng(n)
    return {
        'observation/exterior_image_1_left': picture(random, 24, 32, 3),
        'observation/wrist_image_left': picture(random, 24, 32, 3),
        'observation/joint_position': random.uniform(-1, 1, 7),
        'observation/gripper_position': random.uniform(0, 1, 1),
        'prompt': f'pick up {n}',
    }


def libero(n=0):
    """Return a request as in openpi's examples/libero."""
    random = np.random.default_rng(n)
    return {
        'observation/image': picture(random, 28, 28, 3),
        'observation/wrist_image': picture(random, 28, 28, 3),
        'observation/state': random.uniform(-1, 1, 8),
        'prompt': f'put {n} away',
    }


def tabletop(n=0):
    """Return a request with the names of the contract; its policy answers questions."""
    image = picture(np.random.default_rng(n), 28, 28, 3)
    return {'front': image, 'wrist': image, 'observation.state': [0.0] * 7, 'prompt': 'go'}


def aloha(n=0):
    """Return a request as in openpi's examples/aloha_real: channels first, one unused camera."""
    random = np.random.default_rng(n)
    cameras = 'cam_high', 'cam_low', 'cam_left_wrist', 'cam_right_wrist'
    return {
        'state': random.uniform(-1, 1, 14),
        'images': {camera: picture(random, 3, 24, 32) for camera in cameras},
        'prompt': f'fold {n}',
    }


REQUESTS = {'franka': droid, 'libero': libero, 'aloha': aloha}
