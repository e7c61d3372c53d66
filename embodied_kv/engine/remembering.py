"""Which frames of a robot become memory rows, and how its chunks and texts read them.

Before a prefill, the robot's present frame becomes a memory row if it is the first one, if the
instruction changes, or if the newest memory row is older than an interval and the images have
changed since. After a prefill, the new frame gets a copy of its row between the memory rows that
the robot reads and its recall tokens, which all its readers read in place of the row. So graphs,
streams and capsules know nothing of memory rows. The prefill itself reads none. Memory rows of the
present instruction are read once it has ended.

A robot may keep more memory rows than it reads. Then the words of a row, its instruction and the
next one, select what is read, by a text encoder as sentences are retrieved (KEEP, section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from embodied_kv.capsule import reentry
from embodied_kv.capsule.reentry import image_change
from embodied_kv.engine.compression import ACTION, Compression
from embodied_kv.engine.recall import Layers, Recaller
from embodied_kv.engine.shapes import copy_capacity
from embodied_kv.engine.time_budget import LatencyEstimator
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.frame_memory import FrameMemory, MemoryRow, RememberedFrame, limited
from embodied_kv.kv.handle import KvHandle, Lease, Place
from embodied_kv.kv.manager import LANGUAGE, KvManager
from embodied_kv.memory.encoder import HashingEncoder
from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.policy import Policy
from embodied_kv.model.processing.prompt import recall_ids
from embodied_kv.runtime.graph_cache import GraphCache
from embodied_kv.types import Observation

SECOND = 1_000_000_000  # ns
SIDE = 96  # pixels; the longer side of a picture
# Work that may fail for one frame, and the consequence.
KEEPING = 'Keeping a memory row', 'the frame does not become one'
READING = 'Reading memory rows', 'the present frame is read without them'


@dataclass(frozen=True)
class _Seen:
    """The newest frame of a robot: its place, its instruction, and small pictures of its views."""

    place: Place
    instruction: str
    pictures: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class _Begun:
    """A frame whose recall tokens are not computed yet.

    memory: K and V of its robot's memory rows by layer. ids: the recall tokens. copy: a lease on
    the copy that they are computed behind.
    """

    handle: KvHandle
    memory: tuple[tuple[Tensor, Tensor], ...]
    ids: Sequence[int]
    copy: Lease


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
        self._novelty = config.memory_novelty
        move = Rotation(policy.model.backbone.wavelengths.to(policy.model.device))
        kept, most = config.kept_rows, config.memory_rows
        self.rows = FrameMemory(kept, model.prefix_tokens, move, kv.budget, most)
        self._encode = lru_cache(maxsize=512)(_encode)
        kv.budget.join(self.rows)
        self._tokenizer, self._recaller = policy.tokenizer, None
        if config.memory_rows:
            read = kv.prefixes, kv.compressed, graphs, copy_capacity(model, config, 1.0)
            self._recaller = Recaller(policy.model, *read, config.max_batch_robots)
        self._newest: dict[str, _Seen] = {}  # by robot

    def before(self, observation: Observation) -> None:
        """Keep the present frame of the robot of a new observation, if the rule requires it."""
        robot = observation.robot
        self.rows.follow(robot, observation.instruction)
        if (seen := self._newest.get(robot)) is None:
            return
        if (lease := self._kv.frames.acquire_current(robot)) is None:
            return
        with lease, self._compression.failing_alone(lease.handle, *KEEPING):
            handle, known = lease.handle, self.rows.rows(robot)
            if (handle.sequence, handle.stamp) == (observation.sequence, observation.stamp):
                return  # the same frame is prefilled again
            changes = seen.instruction != observation.instruction
            is_new = not known or known[0].handle.place != handle.place
            is_seen = seen.place == handle.place  # a capsule may have restored another frame
            if is_seen and is_new and (changes or self._is_due(handle, seen, known)):
                frame = self._remembered(lease, seen, observation.instruction, not known)
                if frame and not self.rows.keep(frame, self._kv.prefixes, lease.row):
                    self._kv.copies.allocation_failures += 1

    def _is_due(self, handle: KvHandle, seen: _Seen, known: Sequence[MemoryRow]) -> bool:
        """Return whether the interval has passed and the images have changed since the newest."""
        if not known:
            return True
        age = abs(handle.stamp - known[0].handle.stamp)
        return age >= self._interval and novelty(known[0].pictures, seen.pictures) >= self._novelty

    def at_boundary(self, robot: str) -> tuple[MemoryRow, ...]:
        """Return the memory rows of a capsule of this moment, the newest first.

        The newest frame is one of them, because a capsule is restored to a later frame.
        """
        known, seen = self.rows.rows(robot), self._newest.get(robot)
        lease = self._kv.frames.acquire_current(robot)
        if lease is None:
            return known
        with lease, self._compression.failing_alone(lease.handle, *KEEPING):
            place = lease.handle.place
            is_new = not known or known[0].handle.place != place
            if seen is None or seen.place != place or not is_new:
                return known
            if frame := self._remembered(lease, seen, None, not known):
                return limited([frame.row(self._kv.prefixes, lease.row), *known], self.rows.most)
        return known

    def _remembered(
        self, lease: Lease, seen: _Seen, until: str | None, is_first: bool
    ) -> RememberedFrame | None:
        """Return the newest frame as one that becomes a memory row; None without its scores.

        Raises FloatingPointError for NaN or infinity, which all later frames would read.
        """
        if not all(bool(part.isfinite().all()) for part in self._kv.prefixes.row(lease.row)):
            raise FloatingPointError('keys and values must be finite (got NaN or infinity)')
        kept = self._compression.kept_tokens(lease, self._ratio)
        if kept is None:  # there was no room for its scores
            self._kv.copies.allocation_failures += 1
            return None
        about = lease.handle, seen.instruction, until, is_first, kept
        return RememberedFrame(*about, self._latency.estimate('prefill'), seen.pictures)

    def after(self, handles: Sequence[KvHandle], observations: Sequence[Observation]) -> None:
        """Let the readers of new frames read the memory rows of their robots, too.

        Without room they read the row alone (`CompressedPool.allocation_failures` counts).
        """
        if self._recaller is None:
            return
        begun: list[_Begun] = []
        try:
            for handle, observation in zip(handles, observations, strict=True):
                with self._compression.failing_alone(handle, *READING):
                    pictures = tuple(picture(i) for i in observation.images if i is not None)
                    seen = _Seen(handle.place, observation.instruction, pictures)
                    self._newest[handle.robot] = seen
                    begun += self._begun(handle, observation.instruction)
            spoken = [frame for frame in begun if frame.ids]
            given: list[tuple[_Begun, Layers]] = [(f, []) for f in begun if not f.ids]
            if spoken:
                with self._compression.failing_alone(spoken[0].handle, *READING):
                    recalls = self._recaller.run([(f.ids, f.copy.row) for f in spoken])
                    given += zip(spoken, recalls, strict=True)
            for frame, recall in given:
                frame.copy.release()  # there is another one with recall tokens
                with self._compression.failing_alone(frame.handle, *READING):
                    self._give(frame, recall)
        finally:
            for frame in begun:
                frame.copy.release()

    def _begun(self, handle: KvHandle, instruction: str) -> list[_Begun]:
        """Return the copy of a frame behind the memory rows of its robot; [] without one."""
        memory = self.rows.placed(handle.robot, instruction, partial(self._closeness, instruction))
        if not memory:
            return []
        ids = recall_ids(self._tokenizer, instruction)
        with self._kv.acquire(handle) as lease:
            copy = self._kv.copies.compress(lease, self._whole(handle.length), memory)
        return [] if copy is None else [_Begun(handle, memory, ids, copy)]

    def _give(self, frame: _Begun, recall: Layers) -> None:
        """Let the readers of a frame read a copy with memory rows and recall tokens."""
        with self._kv.acquire(frame.handle) as lease:
            kept = self._whole(frame.handle.length)
            whole = self._kv.copies.compress(lease, kept, frame.memory, recall)
        if whole is not None:
            self._kv.keep_copy((ACTION, LANGUAGE), whole)

    def _closeness(self, instruction: str, rows: Sequence[MemoryRow]) -> list[float]:
        """Return the similarity of the words of memory rows to an instruction."""
        wanted = self._encode(instruction)
        texts = [(row.instruction, row.until or '') for row in rows]
        return [max(float(wanted @ self._encode(words)) for words in each) for each in texts]

    def forget(self, robot: str) -> int:
        """Forget all earlier frames of a robot; its newest one becomes no memory row.

        Returns how many memory rows were removed.
        """
        self._newest.pop(robot, None)
        return self.rows.forget(robot)

    def _whole(self, length: int) -> list[Tensor]:
        """Return all positions of a row, by layer."""
        arena = self._kv.prefixes
        positions = torch.arange(length, device=arena.device)
        return [positions.expand(arena.k.shape[2], -1)] * len(self._kv.compressed.layers)


def _encode(text: str) -> np.ndarray:
    (vector,) = HashingEncoder().encode([text])
    return vector


def novelty(then: Sequence[np.ndarray], now: Sequence[np.ndarray]) -> float:
    """Return how much pictures of the same views have changed, 0 to 1; 1 if they are others."""
    if [image.shape for image in then] != [image.shape for image in now]:
        return 1.0
    pairs = zip(map(_coarse, then), map(_coarse, now), strict=True)
    return max((image_change(*pair) for pair in pairs), default=1.0)


def _coarse(image: np.ndarray) -> np.ndarray:
    """Return the thumbnail of a picture, which averages noise out; itself if it is smaller."""
    return image if min(image.shape[:2]) < reentry.SIDE else reentry.thumbnail(image)


def picture(image: np.ndarray) -> np.ndarray:
    """Return a picture whose longer side has SIDE pixels at most, uint8 [height, width, 3]."""
    height, width = image.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    own = np.array(image)  # torch reads no reversed or read-only array
    pixels = torch.from_numpy(own).movedim(-1, 0)[None].float()
    small = functional.interpolate(pixels, size, mode='area')[0].movedim(0, -1)
    return small.round().to(torch.uint8).contiguous().numpy()
