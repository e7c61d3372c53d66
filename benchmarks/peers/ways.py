"""The ways that are compared: the engine and LeRobot's model, eager and compiled, on equal inputs.

The engine starts from uint8 images and a prompt, LeRobot's model from prepared tensors, so only
the engine's times contain the preparation. All return the chunk that leaves the network.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.common import scene
from benchmarks.common.command import BenchmarkError
from benchmarks.peers.lerobot import STEPS
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.handle import Lease
from embodied_kv.types import Observation

WAYS = ('ours_eager', 'ours_compiled', 'theirs_eager', 'theirs_compiled')


class Network(scene.FullPolicy):
    """A policy that returns the network's output in place of actions, for comparison."""

    def actions(self, normalised: NDArray, state: NDArray) -> NDArray[np.float32]:
        return normalised.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Asked:
    """The same input for both models: an observation, and the tensors that are made of it.

    images: of each view [1, 3, size, size]. ids: int64 [1, tokens]. state: float32 [1,
    state_width]. noise: float32 [1, chunk, padded_action_dim], on the host.
    """

    observation: Observation
    images: tuple[Tensor, ...]
    ids: Tensor
    state: Tensor
    noise: NDArray[np.float32]

    @classmethod
    def of(cls, policy: Network, number: int) -> Asked:
        """Return the input of that number, always the same for the same number."""
        c, device = policy.config, policy.model.device
        o = scene.observation(c, number)
        shape = 1, c.chunk_size, c.padded_action_dim
        noise = np.random.default_rng(number).standard_normal(shape, np.float32)
        known = policy.processing.state(o.state)
        state = policy.state_token(known) if c.state_width else np.zeros(0, np.float32)
        return cls(
            o,
            policy.images(o.images).float().split(1),
            torch.tensor([policy.prompt_ids(o.instruction, o.state)], device=device),
            torch.from_numpy(state)[None].to(device),
            noise,
        )


@dataclass(frozen=True, eq=False)
class Way:
    """The calls of a model, by phase.

    prefill: of the first frame; denoise: from its prefix, which is held; frame: of any frame. A
    chunk is float32 [chunk, padded_action_dim].
    """

    prefill: Callable[[], object]
    denoise: Callable[[], NDArray[np.float32]]
    frame: Callable[[Asked], NDArray[np.float32]]


@contextmanager
def ours(policy: Network, first: Asked, threads: int, compile: str) -> Iterator[Way]:
    """Yield the calls of an engine. compile: its parameter.

    Raises BenchmarkError if nothing can be compiled.
    """
    config = EngineConfig(
        rows=4,
        streams=1,
        decode_tokens=16,
        compressed_rows=0,
        time_budget=False,
        euler_steps=STEPS,
        min_euler_steps=STEPS,
        threads=threads,
        compile=compile,
    )
    engine = Engine(policy, config, say=partial(print, file=sys.stderr, flush=True))
    if compile == 'now' and not engine.graphs.compiled_names:
        raise BenchmarkError('nothing can be compiled here, see above: choose other --ways')

    def denoise(lease: Lease, asked: Asked) -> NDArray[np.float32]:
        (chunk,) = engine.denoise([lease], [time.monotonic() + 1e6], asked.noise)
        return chunk.values

    def frame(asked: Asked) -> NDArray[np.float32]:
        (handle,) = engine.prefill([asked.observation])
        with engine.kv.acquire(handle) as lease:
            return denoise(lease, asked)

    (handle,) = engine.prefill([first.observation])
    with engine.kv.acquire(handle) as held:
        prefill = partial(engine.prefill, [first.observation])
        yield Way(prefill, partial(denoise, held, first), frame)


class Peer(Protocol):
    """A model of LeRobot.

    inputs: returns its input tensors of a frame. prefix: returns what `denoise` reads.
    """

    model: nn.Module
    compile_mode: str

    def round(self, dtype: str) -> None: ...

    def inputs(self, asked: Asked) -> tuple: ...

    def prefix(self, *inputs: Any) -> tuple: ...

    def denoise(self, *held_and_noise: Any) -> Tensor: ...

    def sample(self, noise: Tensor, *inputs: Any) -> Tensor: ...


def theirs(peer: Peer, first: Asked, mode: str | None) -> Way:
    """Return the calls of LeRobot's model. mode: of torch.compile; None: eager."""

    def run(call: Callable) -> Callable:
        return torch.inference_mode()(torch.compile(call, mode=mode) if mode else call)

    def noise(asked: Asked) -> Tensor:
        return torch.from_numpy(asked.noise).to(asked.ids.device)

    inputs = peer.inputs(first)
    held = torch.inference_mode()(peer.prefix)(*inputs)
    prefill, denoise, sample = map(run, (peer.prefix, peer.denoise, peer.sample))
    return Way(
        lambda: prefill(*inputs),
        lambda: _numbers(denoise(*held, noise(first))),
        lambda asked: _numbers(sample(noise(asked), *peer.inputs(asked))),
    )


def _numbers(chunks: Tensor) -> NDArray[np.float32]:
    return chunks[0].float().cpu().numpy()
