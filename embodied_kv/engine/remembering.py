"""Which frames of a robot become memory rows, and how its chunks and texts read them.

Before a prefill, the robot's present frame becomes a memory row if it is the first one, if the
instruction changes, or if the newest memory row is older than an interval. After a prefill, the
new frame gets a copy of its row between the robot's memory rows and its recall tokens, which all
its readers read in place of the row. So graphs, streams and capsules know nothing of memory rows.
The prefill itself reads none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from embodied_kv.engine.compression import ACTION, Compression
from embodied_kv.engine.recall import Recaller
from embodied_kv.engine.shapes import copy_capacity
from embodied_kv.engine.time_budget import LatencyEstimator
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.frame_memory import FrameMemory
from embodied_kv.kv.handle import KvHandle, Lease, Place
from embodied_kv.kv.manager import LANGUAGE, KvManager
from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.policy import Policy
from embodied_kv.model.processing.prompt import recall_ids
from embodied_kv.runtime.graph_cache import GraphCache
from embodied_kv.types import Observation

SECOND = 1_000_000_000  # ns
SIDE = 96  # pixels; the longer side of a picture


@dataclass(frozen=True)
class _Seen:
    """The newest frame of a robot: its place, its instruction, and small pictures of its views."""

    place: Place
    instruction: str
    pictures: tuple[np.ndarray, ...]


class Remembering:
    """The memory rows of an engine; for the engine thread.

    rows: the memory rows, which any thread may read and remove. Raises ValueError for a policy
    whose rows contain keys without positions.
    """

    def __init__(
        self,
        policy: Policy,
        kv: KvManager,
        compression: Compression,
        latency: LatencyEstimator,
        graphs: GraphCache,
        config: EngineConfig,
    ) -> None:
        model = policy.config
        if config.memory_rows and model.cross_layers:
            raise ValueError(
                'engine.memory_rows must be 0 for a policy whose action expert attends across '
                f'layers (got {config.memory_rows}); set it to 0'
            )
        self._kv, self._compression, self._latency = kv, compression, latency
        self._ratio, self._interval = config.memory_keep_ratio, config.memory_interval * SECOND
        move = Rotation(policy.model.backbone.wavelengths.to(policy.model.device))
        self.rows = FrameMemory(config.memory_rows, model.prefix_tokens, move, kv.budget)
        kv.budget.join(self.rows)
        self._tokenizer, self._recaller = policy.tokenizer, None
        if config.memory_rows:
            read = kv.prefixes, kv.compressed, graphs, copy_capacity(model, config, 1.0)
            self._recaller = Recaller(policy.model, *read)
        self._newest: dict[str, _Seen] = {}  # by robot

    def before(self, observation: Observation) -> None:
        """Keep the present frame of the robot of a new observation, if the rule requires it."""
        robot = observation.robot
        if (seen := self._newest.get(robot)) is None:
            return
        if (lease := self._kv.frames.acquire_current(robot)) is None:
            return
        with lease, self._compression.failing_alone(lease.handle):
            handle, known = lease.handle, self.rows.rows(robot)
            changes = seen.instruction != observation.instruction
            age = abs(handle.stamp - known[0].handle.stamp) if known else self._interval
            is_new = not known or known[0].handle.place != handle.place
            is_seen = seen.place == handle.place  # a capsule may have restored another frame
            if is_seen and is_new and (changes or age >= self._interval):
                self._keep(lease, seen, changes or not known)

    def _keep(self, lease: Lease, seen: _Seen, is_last: bool) -> None:
        kept = self._compression.kept_tokens(lease, self._ratio)
        if kept is None:  # there was no room for its scores
            self._kv.copies.allocation_failures += 1
            return
        about, source = (lease.handle, seen.instruction, is_last), self._kv.prefixes
        cost = self._latency.estimate('prefill')
        self.rows.keep(*about, source, lease.row, kept, cost, seen.pictures)

    def after(self, handle: KvHandle, observation: Observation) -> None:
        """Let the readers of a new frame read the robot's memory rows, too.

        Without room they read the row alone (`CompressedPool.allocation_failures` counts).
        """
        if self._recaller is None:
            return
        with self._compression.failing_alone(handle):
            pictures = tuple(picture(image) for image in observation.images if image is not None)
            self._newest[handle.robot] = _Seen(handle.place, observation.instruction, pictures)
        if not self.rows.rows(handle.robot):
            return
        with self._compression.failing_alone(handle):
            memory = self.rows.placed(handle.robot)
            with self._kv.acquire(handle) as lease:
                kept = [self._whole(handle.length)] * len(self._kv.compressed.layers)
                copy = self._kv.copies.compress(lease, kept, memory)
                if copy is None:
                    return
                with copy:  # it ends: another one has the recall tokens, too
                    ids = recall_ids(self._tokenizer, observation.instruction)
                    recall = self._recaller.run(ids, copy.row)
                    whole = self._kv.copies.compress(lease, kept, memory, recall)
            if whole is not None:
                self._kv.keep_copy((ACTION, LANGUAGE), whole)

    def forget(self, robot: str) -> None:
        """Forget all earlier frames of a robot, and its newest one."""
        self.rows.forget(robot)
        self._newest.pop(robot, None)

    def _whole(self, length: int) -> Tensor:
        arena = self._kv.prefixes
        positions = torch.arange(length, device=arena.device)
        return positions.expand(arena.k.shape[2], -1)


def picture(image: np.ndarray) -> np.ndarray:
    """Return a picture whose longer side has SIDE pixels at most, uint8 [height, width, 3]."""
    height, width = image.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    own = np.array(image)  # torch reads no reversed or read-only array
    pixels = torch.from_numpy(own).movedim(-1, 0)[None].float()
    small = functional.interpolate(pixels, size, mode='area')[0].movedim(0, -1)
    return small.round().to(torch.uint8).contiguous().numpy()
