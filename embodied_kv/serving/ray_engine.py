"""An engine on another machine of a Ray cluster: observations are sent, chunks are returned.

Ray is an optional extra that is imported when an engine is created. Observations and chunks are
sent as msgpack (`websocket.codec`), so that neither side unpickles them. **Warning**: Ray's own
transport uses pickle. Each process that can join the cluster can run code in it, so its ports must
be in a private network.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from types import ModuleType

import numpy as np

from embodied_kv.config import preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.warmup import warm_up
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.engines import Link
from embodied_kv.fleet.profile import Profile
from embodied_kv.parameter import parameter
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.batch import (
    LateError,
    TimedObservation,
    batch_seconds,
    profile_of,
    serve_in_time,
)
from embodied_kv.serving.load import load_policy
from embodied_kv.serving.websocket import codec
from embodied_kv.types import ActionChunk, Guide

OBSERVED = ('instruction', 'stamp', 'sequence', 'robot', 'steps')
MADE = ('values', 'updates', 'dt', 'stamp', 'sequence', 'steps', 'prefill_ms', 'denoise_ms')


@dataclass(frozen=True)
class CloudConfig:
    """An additional engine of a policy server: ROS parameters and command-line options."""

    cloud_address: str = parameter(
        '',
        "Ray address of one more engine with the same weights, 'local' for a cluster of this "
        'machine. Empty: there is none',
        old=('cloud',),
    )
    cloud_device: str = parameter('cuda', 'Device of that engine: cpu or cuda')
    cloud_latency: float = parameter(
        0.02, 'Latency (s) of the network to that engine, one way', range=(0.0, 10.0)
    )
    cloud_mbit: float = parameter(
        100.0, 'Bandwidth (Mbit/s) of that network, each way', range=(0.001, 1e6)
    )

    def open(
        self, preset: str, checkpoint: str, config: EngineConfig, contract: Contract
    ) -> RemoteEngine | None:
        """Return the engine; None without `cloud_address`. Raises as `RemoteEngine`."""
        if not self.cloud_address:
            return None
        if not preset:
            raise ValueError(
                "preset must be the name of the model's dimensions with cloud_address (got ''); "
                'name the preset that the other engine is to load'
            )
        if config.memory_rows > 0:
            raise ValueError(
                'engine.memory_rows must be 0 with cloud_address, because the other engine does '
                f'not know earlier frames (got {config.memory_rows}); set one of both to its '
                'default'
            )
        address = '' if self.cloud_address == 'local' else self.cloud_address
        config = replace(config, device=self.cloud_device, memory_rows=0, memory_kept_rows=0)
        rate = self.cloud_mbit * 1e6 / 8
        link = Link(self.cloud_latency, rate, rate)
        return RemoteEngine(address, preset, checkpoint, config, contract, link)


def ray() -> ModuleType:
    """Return the module Ray. Raises ValueError if it is not installed."""
    try:
        return importlib.import_module('ray')
    except ImportError as error:
        raise ValueError(
            'Ray must be installed for an engine on another machine; run pip install ray (the '
            'extra `fleet`)'
        ) from error


class EngineActor:
    """A Ray actor with one thread, which runs an engine on the other machine."""

    def __init__(self, model: str, checkpoint: str, config: dict, contract: dict) -> None:
        settings = EngineConfig(**config)
        robot = Embodiment.of(Contract.model_validate(contract))
        policy = load_policy(robot, model, checkpoint, settings, print, print)
        self._engine = Engine(policy, settings)
        warm_up(self._engine)

    def batch_seconds(self) -> dict[int, float]:
        """Return `batch.batch_seconds`, without the network."""
        return batch_seconds(self._engine)

    def serve(self, frames: bytes) -> bytes:
        """Return packed results of `batch.serve_in_time` for packed observations."""
        return pack_results(serve_in_time(self._engine, unpack_observations(frames)))


class RemoteEngine:
    """The policy server's client of an engine in a Ray cluster.

    Args:
        address: Address of the Ray cluster; '' for a cluster of this machine.
        model: Name of the preset.
        checkpoint: As for `load_policy`.
        config: The engine's configuration.
        contract: The contract of the robots.
        link: The network to the engine.

    Raises:
        ValueError: Ray is not installed, or the engine of the actor cannot be created.
    """

    def __init__(
        self,
        address: str,
        model: str,
        checkpoint: str,
        config: EngineConfig,
        contract: Contract,
        link: Link,
    ) -> None:
        self._ray = ray()
        if not self._ray.is_initialized():
            # A cluster of this machine listens on loopback only.
            where = {'address': address} if address else {'_node_ip_address': '127.0.0.1'}
            self._ray.init(**where, log_to_driver=False)
        # Ray restarts an actor without limit, so that a node that returns serves again. Ray never
        # sends a batch again, because the dispatcher decides that.
        kind = self._ray.remote(max_restarts=-1, max_task_retries=0)(EngineActor)
        self._actor = kind.remote(
            model, checkpoint, asdict(config), contract.model_dump(mode='json')
        )
        self.link = link
        seconds = self._ray.get(self._actor.batch_seconds.remote())
        dimensions = Embodiment.of(contract).adapted(preset(model))
        self.profile: Profile = profile_of(dimensions, seconds)

    def __call__(
        self, frames: Sequence[TimedObservation], deadline: float
    ) -> Future[list[ActionChunk | Exception]]:
        """Return a future of the chunks of a batch, each by the deadline of its frame.

        Args:
            frames: The batch.
            deadline: Latest deadline of all frames, s, steady clock of this machine.
        """
        images = (image for frame in frames for image in frame.images if image is not None)
        way = self.link.upload_time(sum(image.nbytes for image in images))
        way += self.link.download_time(len(frames) * self.profile.chunk_bytes)
        packed = pack_observations(frames, deadline, way)
        promise: Future[list[ActionChunk | Exception]] = Future()

        def answered(work: Future[bytes]) -> None:
            try:
                promise.set_result(unpack_results(work.result(), deadline))
            except Exception as error:  # of the actor, the network or Ray
                promise.set_exception(error)

        self._actor.serve.remote(packed).future().add_done_callback(answered)
        return promise

    def close(self) -> None:
        self._ray.kill(self._actor)


def pack_observations(
    frames: Sequence[TimedObservation], deadline: float, way: float = 0.0
) -> bytes:
    """Return a batch as bytes, with the seconds that are left for each frame.

    way: s that the network needs, there and back.
    """
    end = time.monotonic() + way
    return codec.pack(
        [
            {name: getattr(frame, name) for name in OBSERVED}
            | {
                'images': frame.images,
                'state': frame.state,
                'guide': frame.guide and vars(frame.guide),
                'seconds': min(frame.deadline, deadline) - end,
            }
            for frame in frames
        ]
    )


def unpack_observations(data: bytes) -> list[TimedObservation]:
    """Return a batch from its bytes, with deadlines on the clock of this machine."""
    frames, now = [], time.monotonic()
    for given in codec.unpack(data):
        given = _writable(given)
        guide = given['guide'] and Guide(**_writable(given['guide']))
        deadline = now + given.pop('seconds')
        given |= {'images': tuple(given['images']), 'guide': guide, 'deadline': deadline}
        frames.append(TimedObservation(**given))
    return frames


def pack_results(results: Sequence[ActionChunk | Exception]) -> bytes:
    """Return chunks and the texts of errors as bytes."""
    return codec.pack(
        [
            {'error': str(result), 'late': isinstance(result, LateError)}
            if isinstance(result, Exception)
            else {name: getattr(result, name) for name in MADE}
            for result in results
        ]
    )


def unpack_results(data: bytes, deadline: float) -> list[ActionChunk | Exception]:
    """Return chunks and errors from their bytes; an error is a RuntimeError or a LateError."""
    return [
        (LateError if given['late'] else RuntimeError)(given['error'])
        if 'error' in given
        else ActionChunk(deadline=deadline, **_writable(given))
        for given in codec.unpack(data)
    ]


def _writable(given: dict) -> dict:
    """Return the map with copies of its arrays, which are read-only views of a message."""
    return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in given.items()}
