"""The ways to compute a frame that `benchmarks.frame` compares.

Each uses the engine's own calls, except for the decoding of `copying`.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch

from benchmarks.common import clock, scene
from benchmarks.common.workers import check_status
from benchmarks.frame.copying import CopyingStreams
from embodied_kv.config import ModelConfig
from embodied_kv.engine import decode, engine
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kernels import rows
from embodied_kv.kv import views
from embodied_kv.kv.handle import KvHandle
from embodied_kv.kv.manager import KvManager
from embodied_kv.kv.prefix_pool import PrefixPool
from embodied_kv.kv.stream_pool import StreamPool
from embodied_kv.model.policy import Policy

MODES = ('isolated', 'shared', 'batched', 'copying', 'parallel')
PER_FRAME = ('batched', 'copying')  # the ways in which k matters; the others decode to the end


@dataclass(frozen=True)
class Setting:
    """N tokens per stream, k decode steps per frame, actions per chunk."""

    tokens: int
    steps: int
    chunk_size: int

    @property
    def live(self) -> int:
        """Return the number of streams in the batch of a steady-state frame."""
        return -(-(self.tokens - 1) // self.steps)


def make_mode(
    name: str, policy: Policy, setting: Setting, compile: str = 'off', room: int = 0
) -> Mode:
    """Return the way of that name.

    compile: of its engine. room: minimum number of streams for which the engine has room.
    """
    return {
        'isolated': Isolated,
        'shared': Shared,
        'batched': Batched,
        'copying': Copying,
        'parallel': Parallel,
    }[name](policy, setting, compile, room)


class Mode:
    """A way to compute frames: frame(n) computes frame n -> (actions, tokens generated).

    managed: seconds of each frame spent on the cache. timer: the clock of its frames.
    """

    live = 1

    def __init__(
        self, policy: Policy, setting: Setting, compile: str = 'off', room: int = 0
    ) -> None:
        self.policy, self.setting = policy, setting
        self.managed: list[float] = []
        self.timer = clock.timer(policy.model.device.type)
        live = max(self.live_streams(), room)
        query = len(policy.tokenizer.encode(scene.QUERY))
        self.engine = Engine(
            policy,
            EngineConfig(
                rows=live + 6,
                streams=live + 2,
                decode_tokens=query + setting.tokens + 1,
                time_budget=False,
                min_euler_steps=10,
                threads=torch.get_num_threads(),
                compile=compile,
            ),
        )

    def live_streams(self) -> int:
        """Return the number of streams that this way keeps alive at once."""
        return 1

    def frame(self, number: int) -> tuple[np.ndarray, int]:
        raise LookupError('each way does its own frame')

    def close(self) -> None:
        """Do nothing: there is nothing to end."""

    def prefill(self, number: int) -> KvHandle:
        (handle,) = self.engine.prefill([scene.observation(self.policy.config, number)])
        return handle

    def act(self, handle: KvHandle) -> np.ndarray:
        with self.engine.kv.acquire(handle) as lease:
            (chunk,) = self.engine.denoise([lease], [time.monotonic() + 1e6])
        return chunk.values

    def decode_to_the_end(self, handle: KvHandle) -> int:
        stream = self.engine.open(handle, scene.QUERY, max_tokens=self.setting.tokens)
        while not stream.reason:
            self.engine.decode()
        return len(stream.tokens)


class Isolated(Mode):
    def frame(self, number: int) -> tuple[np.ndarray, int]:
        actions = self.act(self.prefill(number))
        return actions, self.decode_to_the_end(self.prefill(number))


class Shared(Mode):
    def frame(self, number: int) -> tuple[np.ndarray, int]:
        handle = self.prefill(number)
        actions = self.act(handle)
        return actions, self.decode_to_the_end(handle)


class Batched(Mode):
    def __init__(self, policy: Policy, setting: Setting, *others: object) -> None:
        super().__init__(policy, setting, *others)
        scene.steady_state(self.engine, setting.tokens, setting.steps)

    def live_streams(self) -> int:
        return self.setting.live

    def frame(self, number: int) -> tuple[np.ndarray, int]:
        with stopwatch(self.timer) as spent:
            handle = self.prefill(number)
            actions = self.act(handle)
            self.engine.open(handle, scene.QUERY, max_tokens=self.setting.tokens)
            said = sum(
                d.tokens > 0 for _ in range(self.setting.steps + 1) for d in self.engine.decode()
            )
        self.managed.append(spent[0])
        return actions, said


class Copying(Mode):
    def __init__(self, policy: Policy, setting: Setting, *others: object) -> None:
        super().__init__(policy, setting, *others)
        self.ids = policy.tokenizer.encode(scene.QUERY)
        room = policy.config.prefix_tokens + len(self.ids) + setting.tokens + setting.steps
        self.streams = CopyingStreams(policy.model, room, self.timer)
        handle = self.prefill(0)
        for said in reversed(range(1 + setting.steps, setting.tokens, setting.steps)):
            self.streams.open(self.engine.kv.prefixes, handle.row, self.ids, setting.tokens, said)

    def frame(self, number: int) -> tuple[np.ndarray, int]:
        self.streams.copying = 0.0
        handle = self.prefill(number)
        actions = self.act(handle)
        self.streams.open(self.engine.kv.prefixes, handle.row, self.ids, self.setting.tokens)
        said = self.streams.decode(self.setting.steps)
        self.managed.append(self.streams.copying)
        return actions, said


class Parallel(Mode):
    """A second process decodes while this one acts.

    On CUDA start NVIDIA MPS before, to let them overlap. Its clock is wall time, as CPU time of
    this process does not contain the other one.
    """

    def __init__(self, policy: Policy, setting: Setting, *others: object) -> None:
        super().__init__(policy, setting, *others)
        self.timer = time.perf_counter
        context = multiprocessing.get_context('spawn')
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_decode_process,
            args=(theirs, policy.config, policy.model.device.type, setting, *others),
            daemon=True,
        )
        self.process.start()
        theirs.close()  # so that the pipe ends when the process ends
        self._received()

    def frame(self, number: int) -> tuple[np.ndarray, int]:
        self.pipe.send(number)
        actions = self.act(self.prefill(number))
        return actions, self._received()

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join()
        check_status('the process that decodes', self.process.exitcode)

    def _received(self) -> object:
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            check_status('the process that decodes', self.process.exitcode)
            raise


def _decode_process(
    pipe, config: ModelConfig, device: str, setting: Setting, *others: object
) -> None:
    policy = scene.FullPolicy.random(config, device=device)
    mode = Shared(policy, setting, *others)
    pipe.send('ready')
    while (number := pipe.recv()) is not None:
        pipe.send(mode.decode_to_the_end(mode.prefill(number)))


MANAGED = [
    *((KvManager, name) for name in ('reserve', 'acquire', 'create')),
    *((PrefixPool, name) for name in ('commit', 'return_lease')),
    *((StreamPool, name) for name in ('grow', 'update', 'live', 'pop_ended')),
    (views.PrefixWrite, 'bind'),
    (views.PrefixWrite, 'store'),
    (views.SuffixRead, 'bind'),
    (views.TailAppend, 'bind'),
    (views.TailAppend, 'store'),
    (rows.RowBatch, 'plan'),
    (decode.Decoder, '_draws'),
    (engine.Engine, 'deltas'),
]


@contextmanager
def stopwatch(timer: Callable[[], float]):
    """Add up the seconds of everything that manages the cache; outermost calls only."""
    spent, depth = [0.0], [0]

    def timed(function):
        def wrapper(*args, **kwargs):
            depth[0] += 1
            began = timer()
            try:
                return function(*args, **kwargs)
            finally:
                depth[0] -= 1
                if depth[0] == 0:
                    spent[0] += timer() - began

        return wrapper

    patches = [
        mock.patch.object(owner, name, timed(getattr(owner, name))) for owner, name in MANAGED
    ]
    for patch in patches:
        patch.start()
    try:
        yield spent
    finally:
        for patch in patches:
            patch.stop()
