"""All frames of some data sets in memory, as inputs of the network: resized images and numbers.

This module knows data sets by their contract, and the resizing of the project's own policies. It
does not know tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_kv.config import ModelConfig
from embodied_kv.model.processing.images import OWN_RESIZE
from embodied_kv.model.processing.prompt import clean
from training.data.lerobot_reader import EpisodeArrays, LeRobotDataSet


@dataclass(frozen=True)
class EpisodeOf:
    """An episode of a data set, by its number."""

    data: LeRobotDataSet
    index: int

    def __len__(self) -> int:
        return self.data.lengths[self.index]


@dataclass(frozen=True, eq=False)
class Frames:
    """F frames of several episodes, of N objects.

    images: uint8 [F, views, S, S, 3], as the policy resizes them. state: float32 [F, D]. action:
    float32 [F, A]. left: int64 [F], frames of its episode from this one on. task: int64 [F], index
    in tasks. subtask: int64 [F], index in subtasks, -1 where the data has none. positions: float32
    [F, N, 3], m; pixels: float32 [F, N, views, 2], (column, row) in such an image; both NaN where
    unknown.
    """

    images: NDArray[np.uint8]
    state: NDArray[np.float32]
    action: NDArray[np.float32]
    left: NDArray[np.int64]
    task: NDArray[np.int64]
    subtask: NDArray[np.int64]
    positions: NDArray[np.float32]
    pixels: NDArray[np.float32]
    tasks: tuple[str, ...]
    subtasks: tuple[str, ...]
    objects: tuple[str, ...]

    @classmethod
    def read(
        cls, episodes: Sequence[EpisodeOf], config: ModelConfig, objects: Sequence[str]
    ) -> Frames:
        """Read the frames of some episodes.

        In addition to the frames, the resized images of one episode are in memory, and one image
        of full size. objects: names of those whose positions are read. Raises DataSetError.
        """
        total, size = sum(map(len, episodes)), config.vision.image_size
        numbers: dict[str, list] = {name: [] for name in ('state', 'action', 'left')}
        images = np.empty((total, len(config.views), size, size, 3), np.uint8)
        positions = np.full((total, len(objects), 3), np.nan, np.float32)
        pixels = np.full((total, len(objects), len(config.views), 2), np.nan, np.float32)
        said: list[str] = []
        doing: list[str | None] = []
        end = 0
        for episode in episodes:
            read = episode.data.read(
                episode.index, lambda image: OWN_RESIZE.pad(_rgb(image), size)
            )
            count = len(read.state)
            here, end = slice(end, end + count), end + count
            for v, view in enumerate(config.views):
                images[here, v] = read.images[view]
            for n, name in enumerate(objects):
                if name in read.positions:
                    positions[here, n] = read.positions[name]
                for v, view in enumerate(config.views):
                    pixels[here, n, v] = _resized(read, view, name, size)
            numbers['state'].append(read.state)
            numbers['action'].append(read.action)
            numbers['left'].append(count - np.arange(count))
            said += [clean(task) for task in read.tasks]
            doing += read.subtasks or [None] * count
        tasks, subtasks = sorted(set(said)), sorted({text for text in doing if text})
        return cls(
            images=images,
            **{name: np.concatenate(parts) for name, parts in numbers.items()},
            task=np.array([tasks.index(text) for text in said]),
            subtask=np.array([subtasks.index(text) if text else -1 for text in doing]),
            positions=positions,
            pixels=pixels,
            tasks=tuple(tasks),
            subtasks=tuple(subtasks),
            objects=tuple(objects),
        )

    def __len__(self) -> int:
        return len(self.state)

    def chunks(self, at: NDArray[np.int64], size: int) -> NDArray[np.float32]:
        """Return the actions from these frames on, [B, size, A].

        After the end of an episode its last action repeats.
        """
        ahead = np.minimum(np.arange(size), self.left[at, None] - 1)
        return self.action[at[:, None] + ahead]

    @property
    def digest(self) -> str:
        """16 hex digits that change with any number or word, but not with images."""
        arrays = (self.state, self.action, self.left, self.task, self.subtask)
        summed = hashlib.sha256(repr((self.tasks, self.subtasks, self.objects)).encode())
        for array in (*arrays, self.positions, self.pixels):
            summed.update(np.ascontiguousarray(array).tobytes())
        return summed.hexdigest()[:16]


def _rgb(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return [height, width, 3] of an image with one or three channels."""
    return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))


def _resized(read: EpisodeArrays, view: str, name: str, size: int) -> NDArray[np.float32] | float:
    """Return where an object is in the network's image of a view, [T, 2]; NaN if unknown."""
    if (view, name) not in read.pixels:
        return np.nan
    sides = np.array(read.sizes[view])
    new = (sides / (sides.max() / size)).astype(int).clip(1)
    return read.pixels[view, name] * (new / sides) + (size - new) // 2


def episodes_of(data: Sequence[LeRobotDataSet]) -> Iterator[EpisodeOf]:
    """Yield all episodes of all data sets, in order."""
    for one in data:
        yield from (EpisodeOf(one, index) for index in range(len(one)))
