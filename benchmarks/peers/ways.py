"""The ways that are compared: ours and LeRobot's, eager and compiled, asked for the same.

Knows the calls of both. Ours starts from images in uint8 and a prompt, theirs from tensors that
are ready: what it takes to get there is in our times alone. All return the network's own chunk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType

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
    """What leaves the network is not made into actions of a robot, so that it can be compared."""

    def actions(self, normalised: NDArray, state: NDArray) -> NDArray[np.float32]:
        return normalised.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Asked:
    """The same for both: an observation, and the tensors that are made of it.

    images: of each view [1, 3, size, size]. ids: int64 [1, tokens]. noise: float32 [1, chunk,
    padded_action_dim], on the host, as both take it to the device themselves.
    """

    observation: Observation
    images: tuple[Tensor, ...]
    ids: Tensor
    noise: NDArray[np.float32]

    @classmethod
    def of(cls, policy: Network, number: int) -> Asked:
        """The same for the same number."""
        c, device = policy.config, policy.model.device
        o = scene.observation(c, number)
        shape = 1, c.chunk_size, c.padded_action_dim
        noise = np.random.default_rng(number).standard_normal(shape, np.float32)
        return cls(
            o,
            policy.images(o.images).float().split(1),
            torch.tensor([policy.prompt_ids(o.instruction, o.state)], device=device),
            noise,
        )

    @property
    def batch(self) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
        """As LeRobot's model takes it: images, whether they are there, ids, whether they are."""
        there = torch.ones(1, dtype=torch.bool, device=self.ids.device)
        return [*self.images], [there] * len(self.images), self.ids, there.expand_as(self.ids)


@dataclass(frozen=True, eq=False)
class Way:
    """prefill: of the first frame; denoise: from its prefix, which is held; frame: of any.

    A chunk is float32 [chunk, padded_action_dim].
    """

    prefill: Callable[[], object]
    denoise: Callable[[], NDArray[np.float32]]
    frame: Callable[[Asked], NDArray[np.float32]]


@contextmanager
def ours(policy: Network, first: Asked, threads: int, compile: str) -> Iterator[Way]:
    """An engine's calls. compile: as its parameter. Raises BenchmarkError if it cannot compile."""
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


def theirs(module: ModuleType, model: nn.Module, first: Asked, mode: str | None) -> Way:
    """A PI05Pytorch's calls, those of its sample_actions. mode: of torch.compile; None: eager."""

    def prefix(images: list[Tensor], seen: list[Tensor], ids: Tensor, valid: Tensor) -> tuple:
        both = model.paligemma_with_expert
        embedded, valid, blocks = model.embed_prefix(images, seen, ids, valid)
        mask = module.prepare_attention_masks_4d(module.make_att_2d_masks(valid, blocks))
        both.paligemma.model.language_model.config._attn_implementation = 'eager'
        _, cache = both.forward(
            attention_mask=mask,
            position_ids=torch.cumsum(valid, dim=1) - 1,
            inputs_embeds=[embedded, None],
            use_cache=True,
        )
        return valid, cache

    def denoise(valid: Tensor, cache: object, noise: Tensor) -> Tensor:
        return module.euler_integrate(partial(model.denoise_step, valid, cache), noise, STEPS)

    def run(call: Callable) -> Callable:
        return torch.inference_mode()(torch.compile(call, mode=mode) if mode else call)

    def noise(asked: Asked) -> Tensor:
        return torch.from_numpy(asked.noise).to(asked.ids.device)

    held = torch.inference_mode()(prefix)(*first.batch)
    prefill, denoised, sample = map(run, (prefix, denoise, model.sample_actions))
    return Way(
        lambda: prefill(*first.batch),
        lambda: _numbers(denoised(*held, noise(first))),
        lambda asked: _numbers(sample(*asked.batch, noise=noise(asked))),
    )


def _numbers(chunks: Tensor) -> NDArray[np.float32]:
    return chunks[0].float().cpu().numpy()
