"""An engine on another machine of a Ray cluster: observations go there, chunks come back.

Knows Ray, which is an optional extra and imported when an engine is asked for. Does not know who
asks or why. What crosses is bytes that say what they are: numbers as NumPy writes them, names as
JSON; nothing of ours is unpickled, at either end. Ray's own transport does pickle: who may join
the cluster may run code in it, so its ports belong in a network of their own.
"""

from __future__ import annotations

import importlib
import io
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import Field, asdict, dataclass, field, replace
from types import ModuleType

import numpy as np

from embodied_kv.config import preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.warmup import warm_up
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.engines import Link
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import bundled
from embodied_kv.model.dtype import served
from embodied_kv.model.policy import Policy
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.batch import Late, batch_seconds, profile_of
from embodied_kv.serving.in_time import TimedObservation, serve_in_time
from embodied_kv.types import ActionChunk, Guide

HEADER = 'header'
OBSERVED = ('instruction', 'stamp', 'sequence', 'robot', 'steps')
MADE = ('dt', 'stamp', 'sequence', 'steps', 'prefill_ms', 'denoise_ms')


def _param(default: float | str, help: str, **more: object) -> Field:
    return field(default=default, metadata={'help': help, 'when': 'configure', **more})


@dataclass(frozen=True)
class CloudConfig:
    """One more engine of a policy server: ROS parameters, and options of the command."""

    cloud: str = _param(
        '',
        "Ray address of one more engine with the same weights, 'local' for a cluster of this "
        'machine. Empty: there is none',
    )
    cloud_device: str = _param('cuda', 'Device of that engine: cpu or cuda')
    cloud_latency: float = _param(
        0.02, 'Latency (s) of the network to that engine, one way', range=(0.0, 10.0)
    )
    cloud_mbit: float = _param(
        100.0, 'Bandwidth (Mbit/s) of that network, each way', range=(0.001, 1e6)
    )

    @property
    def link(self) -> Link:
        """Return the network to the engine."""
        rate = self.cloud_mbit * 1e6 / 8
        return Link(self.cloud_latency, rate, rate)

    def open(
        self, preset: str, checkpoint: str, config: EngineConfig, contract: Contract
    ) -> RemoteEngine | None:
        """Return the engine; None where no cloud is named. Raises as `RemoteEngine`."""
        if not self.cloud:
            return None
        if not preset:
            raise ValueError(
                "preset must be the name of the model's dimensions where cloud is set (got ''); "
                'name the preset that the other engine is to load'
            )
        address = '' if self.cloud == 'local' else self.cloud
        config = replace(config, device=self.cloud_device)
        return RemoteEngine(address, preset, checkpoint, config, contract, self.link)


def ray() -> ModuleType:
    """Ray itself. Raises ValueError where it is missing."""
    try:
        return importlib.import_module('ray')
    except ImportError as error:
        raise ValueError(
            'engines on other machines need Ray: pip install ray (the extra `fleet`)'
        ) from error


class EngineActor:
    """What lives on the other machine: one engine, on the actor's one thread."""

    def __init__(self, model: str, checkpoint: str, config: dict, contract: dict) -> None:
        config, robot = EngineConfig(**config), Embodiment.of(Contract.model_validate(contract))
        dimensions = served(preset(model), config.device, config.dtype)
        if checkpoint == 'random':
            policy = Policy.random(robot.adapted(dimensions), config.seed, config.device)
        else:
            path = checkpoint or str(bundled(model))
            checkpoint = open_checkpoint(path, robot.declared, preset(model))
            policy = checkpoint.load(config.device, dimensions.dtype)
        self._engine = Engine(policy, config)
        warm_up(self._engine)

    def batch_seconds(self) -> dict[int, float]:
        """As `batch.batch_seconds`; the network is not in it."""
        return batch_seconds(self._engine)

    def serve(self, frames: bytes) -> bytes:
        """As `in_time.serve_in_time`, packed on both sides; errors of single robots as text."""
        return pack_results(serve_in_time(self._engine, unpack_observations(frames)))


class RemoteEngine:
    """An actor as the policy server sees it: frames and a deadline in, a future out.

    address: of a Ray cluster, '' for a cluster of this machine. contract: of the robots. link: the
    network to it. Raises ValueError without Ray, and what the actor's engine raises.
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
            # A cluster of its own listens on this machine alone.
            where = {'address': address} if address else {'_node_ip_address': '127.0.0.1'}
            self._ray.init(**where, log_to_driver=False)
        # One restart after another: a node that comes back serves again. A batch is never resent
        # by Ray, because the dispatcher decides that.
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
        """Return the chunks of a batch, each by its frame's deadline.

        deadline: of all of them, s, this machine's steady clock.
        """
        packed = pack_observations(frames, deadline)
        promise: Future[list[ActionChunk | Exception]] = Future()

        def answered(work: Future[bytes]) -> None:
            try:
                promise.set_result(unpack_results(work.result(), deadline))
            except Exception as error:  # the actor's, the network's, or Ray's
                promise.set_exception(error)

        self._actor.serve.remote(packed).future().add_done_callback(answered)
        return promise

    def close(self) -> None:
        """Ends the actor."""
        self._ray.kill(self._actor)


# ---------------------------------------------------------------------- bytes


def pack_observations(frames: Sequence[TimedObservation], deadline: float) -> bytes:
    """Pack a batch, with the seconds that are left for each of its frames."""
    arrays, told, now = {}, [], time.monotonic()
    for i, frame in enumerate(frames):
        present = [k for k, image in enumerate(frame.images) if image is not None]
        arrays |= {f'{i}.image.{k}': frame.images[k] for k in present}
        arrays[f'{i}.state'] = frame.state
        told.append({name: getattr(frame, name) for name in OBSERVED} | {'of': len(frame.images)})
        told[-1]['seconds'] = min(frame.deadline, deadline) - now
        if (guide := frame.guide) is not None:
            arrays |= {f'{i}.guide.actions': guide.actions, f'{i}.guide.weights': guide.weights}
            told[-1]['delay'] = guide.delay
    return _pack({'frames': told}, arrays)


def unpack_observations(data: bytes) -> list[TimedObservation]:
    """Return a batch from its bytes, with deadlines on the clock of this machine."""
    header, arrays = _unpack(data)
    frames, now = [], time.monotonic()
    for i, told in enumerate(header['frames']):
        images = tuple(arrays.get(f'{i}.image.{k}') for k in range(told.pop('of')))
        state, guide = arrays[f'{i}.state'], None
        if 'delay' in told:
            actions, weights = arrays[f'{i}.guide.actions'], arrays[f'{i}.guide.weights']
            guide = Guide(actions, told.pop('delay'), weights)
        deadline = now + told.pop('seconds')
        frames.append(
            TimedObservation(images=images, state=state, deadline=deadline, guide=guide, **told)
        )
    return frames


def pack_results(results: Sequence[ActionChunk | Exception]) -> bytes:
    """Pack chunks, or the text of what went wrong."""
    arrays, told = {}, []
    for i, result in enumerate(results):
        if isinstance(result, Exception):
            told.append({'error': str(result), 'late': isinstance(result, Late)})
            continue
        arrays |= {f'{i}.values': result.values, f'{i}.updates': result.updates}
        told.append({name: getattr(result, name) for name in MADE})
    return _pack({'chunks': told}, arrays)


def unpack_results(data: bytes, deadline: float) -> list[ActionChunk | Exception]:
    """Return chunks and errors from their bytes; an error is a RuntimeError, or Late."""
    header, arrays = _unpack(data)
    return [
        (Late if told['late'] else RuntimeError)(told['error'])
        if 'error' in told
        else ActionChunk(
            values=arrays[f'{i}.values'],
            updates=arrays[f'{i}.updates'],
            deadline=deadline,
            **told,
        )
        for i, told in enumerate(header['chunks'])
    ]


def _pack(header: dict, arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    words = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(buffer, **{HEADER: words}, **arrays)
    return buffer.getvalue()


def _unpack(data: bytes) -> tuple[dict, dict[str, np.ndarray]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        arrays = dict(found)
    return json.loads(arrays.pop(HEADER).tobytes()), arrays
