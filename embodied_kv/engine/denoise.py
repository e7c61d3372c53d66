"""Flow matching from a shared prefix.

Noise at t = 1 becomes actions at t = 0 in a planned number of steps.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from embodied_kv.engine import buckets
from embodied_kv.engine.graphs import Graphs, Kind
from embodied_kv.engine.guidance import MODES, Leftover, Steps
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.views import KvView, SuffixRead
from embodied_kv.model.pi05 import Pi05
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.graph import Graph


def noise(seed: int, robot: str, sequence: int, shape: tuple[int, int]) -> np.ndarray:
    """Standard normal float32 of `shape`, a function of seed, robot and frame alone."""
    key = np.array([seed, zlib.crc32(robot.encode()) << 32 | sequence & 0xFFFFFFFF], np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).standard_normal(shape, np.float32)


class Denoiser:
    """Euler steps x <- x + dt v(x, t), dt = -1/n, from prefix rows that are only read.

    One graph is one step, of any count: the schedules of all permitted counts lie one after
    another, and the graph reads its entry at a schedule index that it counts up itself. So
    planning fewer steps is replaying fewer times from another index. robots: chunks in one batch
    at most. rtc, max_guidance: how a chunk goes on from the one that runs, see `guidance`.

    Each step also leaves how far it moved every action: the length of its update over the robot's
    own dimensions, in normalised units (the U of Kairos, section 3.1).
    """

    def __init__(
        self,
        model: Pi05,
        prefixes: Arena,
        compressed: CompressedArena,
        step_counts: Sequence[int],
        graphs: Graphs,
        robots: int = 1,
        rtc: str = 'off',
        max_guidance: float = 5.0,
    ) -> None:
        c, device = model.config, model.device
        self._model, self._graphs = model, graphs
        self._prefixes, self._compressed = prefixes, compressed
        self._robots = buckets.doubling(robots)
        self._first = dict(zip(step_counts, accumulate(step_counts, initial=0), strict=False))
        times = [time for n in step_counts for time in self._times(n)]
        times = torch.tensor(times, device=device)
        schedule = model.expert.modulation(times)
        counts = torch.tensor(step_counts, dtype=torch.float32, device=device)
        self._steps = Steps(
            tuple(
                torch.stack([getattr(entry, part) for entry in schedule])
                for part in ('scale', 'shift', 'gate')
            ),
            times,
            counts.repeat_interleave(torch.tensor(step_counts, device=device)),
            torch.zeros(1, dtype=torch.int64, device=device),
        )
        self._guidance = MODES[rtc](model, self._steps, self._robots[-1], max_guidance)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._updates = torch.zeros(max(step_counts), robots, c.chunk_size, device=device)
        self._x = torch.zeros(robots, c.chunk_size, c.padded_action_dim, device=device)
        half = robots, c.chunk_size, 1, c.backbone.head_dim // 2
        self._rope = tuple(torch.zeros(half, dtype=model.dtype, device=device) for _ in range(2))
        self._views = {slots: self._capture(slots) for slots in self._robots}

    def _times(self, steps: int) -> list[float]:
        # Each time is made in double and rounded once, as in the reference.
        return [1.0 + step * (-1.0 / steps) for step in range(steps)]

    def _capture(self, slots: int) -> SuffixRead:
        model, guidance, x = self._model, self._guidance, self._x[:slots]
        index = self._steps.index
        number, updates, own = self._step, self._updates[:, :slots], model.config.action_dim
        view = SuffixRead(self._prefixes, slots, x.shape[1], self._compressed)
        cos, sin = (part[:slots] for part in self._rope)

        def step(cache: KvView) -> None:
            update = guidance.update(x, lambda m: model.velocity(x, m, cache, (cos, sin)))
            x.sub_(update)
            moved = torch.linalg.vector_norm(update[..., :own], dim=-1)
            updates.index_copy_(0, number, moved[None])
            index.add_(1)
            number.add_(1)

        writes = [
            Buffer('x', x),
            Buffer('updates', self._updates),
            Buffer('schedule_index', index),
            Buffer('step', number),
        ]
        reads = [
            *self._prefixes.buffers('prefixes'),
            *self._compressed.buffers('compressed'),
            *view.buffers,
            *guidance.buffers,
            Buffer('cos', cos),
            Buffer('sin', sin),
        ]
        self._graphs.capture(Kind.DENOISE, partial(step, view), writes, reads, rows=slots)
        self._graphs.compile(Kind.DENOISE, partial(step, view.joint), writes, reads, rows=slots)
        return view

    def _graph(self, slots: int, copies: Sequence[int]) -> Graph:
        """The compiled one, if there is one; it sees no compressed copies."""
        compiled = self._graphs.compiled(Kind.DENOISE, rows=slots)
        if compiled is not None and max(copies, default=-1) < 0:
            return compiled
        return self._graphs.get(Kind.DENOISE, rows=slots)

    def run(
        self,
        rows: Sequence[int],
        x: Tensor,
        steps: int,
        copies: Sequence[int] = (),
        leftovers: Sequence[Leftover | None] = (),
    ) -> tuple[Tensor, Tensor]:
        """Noise x -> normalised actions, both float32 [slots, chunk, padded_action_dim].

        And how far each step moved each action, float32 [slots, steps, chunk].

        rows, copies: prefix row and compressed row that each slot reads; where copies are given,
        one of the two is -1. leftovers: what each chunk goes on from; none: of nothing. Raises
        ValueError for more slots than fit one batch.
        """
        slots = buckets.smallest(
            self._robots, len(rows), 'chunks', 'raise engine.robots, or denoise fewer at once'
        )
        view = self._views[slots].bind(rows, copies)
        for part, made in zip(self._rope, self._model.suffix_rope(view.positions), strict=True):
            part[:slots].copy_(made)
        self._x[: len(rows)].copy_(x)
        self._guidance.bind(leftovers or [None] * len(rows), self._x)
        self._steps.index.fill_(self._first[steps])
        self._step.zero_()
        graph = self._graph(slots, copies)
        for _ in range(steps):
            graph.replay()
        updates = self._updates[:steps, : len(rows)].transpose(0, 1)
        return self._x[: len(rows)].clone(), updates.clone()
