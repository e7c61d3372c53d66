"""Flow matching from a shared prefix: noise at t = 1 becomes actions at t = 0."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from embodied_kv.engine import shapes
from embodied_kv.engine.guidance import MODES, LeftoverActions, Steps
from embodied_kv.engine.shapes import Kind
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.views import KvView, SuffixRead
from embodied_kv.model.expert import flow_times
from embodied_kv.model.pi05 import Pi05
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import Fields, StepInputs


def noise(seed: int, robot: str, sequence: int, shape: tuple[int, int]) -> np.ndarray:
    """Return standard normal float32 of `shape`, a function of seed, robot and frame alone."""
    key = np.array([seed, zlib.crc32(robot.encode()) << 32 | sequence & 0xFFFFFFFF], np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).standard_normal(shape, np.float32)


def consensus(candidates: np.ndarray) -> np.ndarray:
    """Return the number of each robot's most typical candidate, int64 [robots].

    It has the smallest sum of distances to the others (the medoid), so it is a chunk of the
    policy, which their mean need not be; of equal ones, the first. A candidate that is not finite
    is chosen only if none is finite.

    Args:
        candidates: Normalised actions [candidates, robots, chunk, action_dim].
    """
    flat = candidates.reshape(*candidates.shape[:2], -1).astype(np.float64)
    finite = np.isfinite(flat.sum(-1))
    flat = np.where(finite[..., None], flat, 0)
    apart = np.linalg.norm(flat[:, None] - flat[None], axis=-1)  # [candidates, candidates, robots]
    sums = np.where(finite, (apart * finite).sum(1), np.inf)
    return sums.argmin(0)


class Denoiser:
    """Euler steps x <- x + dt v(x, t), dt = -1/n, from prefix rows that are only read.

    One graph starts a chunk (noise, rotary tables). Another one runs one step, for any number of
    steps: the schedules of all permitted numbers are concatenated, and the graph reads its entry
    at an index that it increments. So fewer steps are fewer replays from another index, without
    the host in between. robots: largest number of chunks in a batch. rtc, max_guidance: real-time
    chunking, see `guidance`. sums_times: see `flow_times`. capacity: see `PrefixRead`.

    Each step also records how far it moved every action: the length of its update over the robot's
    dimensions, in normalised units (the U of Kairos, section 3.1).
    """

    def __init__(
        self,
        model: Pi05,
        prefixes: Arena,
        compressed: CompressedArena,
        step_counts: Sequence[int],
        graphs: GraphCache,
        robots: int = 1,
        rtc: str = 'off',
        max_guidance: float = 5.0,
        sums_times: bool = False,
        capacity: int = 0,
    ) -> None:
        c, device = model.config, model.device
        self._model, self._graphs = model, graphs
        self._prefixes, self._compressed, self._capacity = prefixes, compressed, capacity
        self._robots = shapes.doubling(robots)
        self._first = dict(zip(step_counts, accumulate(step_counts, initial=0), strict=False))
        times = torch.cat([flow_times(n, sums_times) for n in step_counts]).to(device)
        schedule = model.expert.modulation(times)
        counts = torch.tensor(step_counts, dtype=torch.float32, device=device)
        self._steps = Steps(
            tuple(
                torch.stack(tables)
                for tables in zip(*(entry.parts for entry in schedule), strict=True)
            ),
            times,
            counts.repeat_interleave(torch.tensor(step_counts, device=device)),
            torch.zeros(1, dtype=torch.int64, device=device),
        )
        chunk = c.chunk_size, c.padded_action_dim
        size, most = robots * c.chunk_size * c.padded_action_dim, max(step_counts)
        own: Fields = {'noise': (size, np.float32), 'first': (1, np.int64)}
        reads = SuffixRead.fields(prefixes, robots, c.chunk_size, compressed)
        self._inputs = StepInputs(device, {**own, **reads, **MODES[rtc].fields(robots, *chunk)})
        self._noise = self._inputs.cut('noise', robots, *chunk)
        self._begin = self._inputs.cut('first', 1)
        self._guidance = MODES[rtc](model, self._steps, self._inputs, robots, max_guidance)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        # In one tensor, so that one copy transfers them to the host.
        self._results = torch.zeros(size + most * robots * c.chunk_size, device=device)
        self._x = self._results[:size].view(robots, *chunk)
        self._updates = self._results[size:].view(most, robots, c.chunk_size)
        half = robots, c.chunk_size, 1, c.backbone.head_dim // 2
        tables = 4 if c.cross_layers else 2
        self._rope = tuple(
            torch.zeros(half, dtype=model.dtype, device=device) for _ in range(tables)
        )
        for slots in self._robots:
            self._capture(slots)

    def _capture(self, slots: int) -> None:
        model, guidance, x = self._model, self._guidance, self._x[:slots]
        noise, first, index, number = self._noise, self._begin, self._steps.index, self._step
        updates, own = self._updates[:, :slots], model.config.action_dim
        is_causal = model.config.expert.is_causal
        rows = self._prefixes, slots, x.shape[1], self._compressed
        view = SuffixRead(*rows, self._inputs, is_causal, self._capacity)
        rope = tuple(part[:slots] for part in self._rope)

        def start(cache: SuffixRead) -> None:
            for part, made in zip(rope, model.suffix_rope(cache.positions), strict=True):
                part.copy_(made)
            x.copy_(noise.device[:slots])
            index.copy_(first.device)
            number.zero_()

        def step(cache: KvView) -> None:
            update = guidance.update(x, lambda m: model.velocity(x, m, cache, rope))
            x.sub_(update)
            moved = torch.linalg.vector_norm(update[..., :own], dim=-1)
            updates.index_copy_(0, number, moved[None])
            index.add_(1)
            number.add_(1)

        actions = [Buffer('x', x)]
        counters = [Buffer('schedule_index', index), Buffer('step', number)]
        names = 'cos', 'sin', 'cross.cos', 'cross.sin'
        tables = [Buffer(name, part) for name, part in zip(names, rope, strict=False)]
        self._graphs.capture(
            Shape(Kind.START, slots),
            start,
            view,
            writes=[*actions, *counters, *tables],
            reads=[Buffer('noise', noise.device[:slots]), Buffer('first', first.device)],
        )
        arenas = self._prefixes.buffers('prefixes'), self._compressed.buffers('compressed')
        self._graphs.capture(
            Shape(Kind.DENOISE, slots),
            step,
            view,
            writes=[*actions, Buffer('updates', self._updates), *counters],
            reads=[*arenas[0], *arenas[1], *guidance.buffers, *tables],
        )

    def run(
        self,
        rows: Sequence[int],
        noise: np.ndarray,
        steps: int,
        copies: Sequence[int] = (),
        leftovers: Sequence[LeftoverActions | None] = (),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return normalised actions, float32 [slots, chunk, padded_action_dim], and their updates.

        The updates are how far each step moved each action, float32 [slots, steps, chunk]. rows,
        copies: prefix row and compressed row of each slot; with copies, one of the two is -1.
        leftovers: the actions that each chunk continues; by default none. Raises ValueError for
        more slots than a batch has.
        """
        count, remedy = len(rows), 'raise engine.max_batch_robots, or denoise fewer at once'
        slots = shapes.smallest(self._robots, count, 'chunks', remedy)
        self._noise.host[:count] = noise
        self._begin.host[:] = self._first[steps]
        self._guidance.bind(leftovers or [None] * count, self._noise.host)
        step = self._graphs[Shape(Kind.DENOISE, slots)]
        step.view.bind(rows, copies)
        self._graphs[Shape(Kind.START, slots)].replay()
        for _ in range(steps):
            step.replay()
        made = self._results.to('cpu', copy=True).numpy()
        x, updates = np.split(made, [self._x.numel()])
        updates = updates.reshape(self._updates.shape)[:steps, :count]
        return x.reshape(self._x.shape)[:count], updates.transpose(1, 0, 2)
