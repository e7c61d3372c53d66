"""Read a LeRobot data set, version 2.0, 2.1 or 3.0, as arrays by a robot's contract.

`LeRobotDataSet` checks everything but images when it is opened; images are decoded, and checked,
when an episode is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embodied_kv.data import pictures
from embodied_kv.data.lerobot_layout import (
    ACTION,
    POSITION,
    STATE,
    SUBTASK,
    name_of,
    pixel_key,
)
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.text import reason
from training.data.lerobot_checks import (
    DataSetError,
    check_columns,
    check_frames,
    check_info,
    check_totals,
    numbers,
)
from training.data.lerobot_columns import Camera, match
from training.data.lerobot_files import DataSetFiles
from training.data.videos import Convert, read_frames

COUNTERS = ['timestamp', 'frame_index', 'episode_index', 'task_index']


@dataclass(frozen=True, eq=False)
class EpisodeArrays:
    """An episode of T frames, in the policy's units and the order of the contract.

    state: float32 [T, D]. action: float32 [T, A]. tasks: of each frame. images: uint8 [T, height,
    width, channels] by the contract's view; channels are 1 for a grey camera, else 3 (RGB). Where
    the data set has such columns: positions, float32 [T, 3] of each object, m; pixels, float32
    [T, 2] by (view, object), column and row in an image of the view; both NaN where they are
    unknown; subtasks, of each frame. sizes: width and height of the images in the data set.
    """

    state: np.ndarray
    action: np.ndarray
    tasks: tuple[str, ...]
    images: dict[str, np.ndarray]
    positions: dict[str, np.ndarray]
    pixels: dict[tuple[str, str], np.ndarray]
    subtasks: tuple[str, ...]
    sizes: dict[str, tuple[int, int]]


class LeRobotDataSet:
    """A data set, opened and checked for a robot. Raises DataSetError, OSError.

    Args:
        root: Folder of the data set.
        robot: Robot with the contract.
        rename_map: Names by the contract of columns that have another name in the data set, as
            LeRobot's option: `{'image': 'observation.images.front', 'actions': 'action'}`.
    """

    def __init__(
        self,
        root: Path | str,
        robot: Embodiment,
        rename_map: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._root, self._robot = Path(root), robot
        with _named(self._root):
            self._files = DataSetFiles(self._root)
            self.info = self._files.info
            check_info(self.info, robot)
            self._columns = match(self.info['features'], robot, rename_map)
            self._tasks = self._files.words('task')
            self._positions, self._pixels = self._find_objects()
            self._subtasks = {}
            if SUBTASK in self.info['features']:
                self._subtasks = self._files.words('subtask')
            self._needed = [*self._columns.numbers.values(), *COUNTERS]
            self._needed += [*self._positions, *self._pixels, *[SUBTASK] * self.has_subtasks]
            self._last: tuple[Path, pa.Table] | None = None  # numbers of a file
            self._episodes = self._files.episodes()
            self.lengths = tuple(episode.length for episode in self._episodes)
            check_totals(self.info, self.lengths)
            self._check_videos()
            for index in range(len(self)):
                self._numbers(index)

    def __len__(self) -> int:
        return len(self._episodes)

    @property
    def objects(self) -> tuple[str, ...]:
        """Return the names of the objects whose positions are columns."""
        return tuple(self._positions.values())

    @property
    def has_subtasks(self) -> bool:
        """Return whether the data set has a subtask for each frame."""
        return bool(self._subtasks)

    @property
    def reordered(self) -> tuple[str, ...]:
        """Return which of state and action have another order than in the contract."""
        return tuple(self._columns.orders)

    def read(self, index: int, convert: Convert = lambda image: image) -> EpisodeArrays:
        """Return an episode. Raises DataSetError if its images cannot be read.

        convert: Applied to each image before the next one is read.
        """
        with _named(self._root):
            images, sizes = {}, {}
            for view, camera in self._columns.cameras.items():
                images[view], sizes[view] = self._images(index, camera, convert)
            return replace(self._numbers(index), images=images, sizes=sizes)

    def _find_objects(self) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        """Return objects by their column of positions, and (view, object) by that of pixels."""
        there = self.info['features']
        positions = {key: name_of(key) for key in there if key.startswith(POSITION)}
        pixels = {
            pixel_key(view, name): (view, name)
            for view in self._robot.contract.views
            for name in positions.values()
        }
        return positions, {key: place for key, place in pixels.items() if key in there}

    def _check_videos(self) -> None:
        """Check that the episodes of a video file do not overlap. Raises DataSetError."""
        fps, used = self._robot.contract.fps, {c.column for c in self._columns.cameras.values()}
        parts = sorted(
            (str(part.path), part.start, part.start + episode.length / fps, episode.index)
            for episode in self._episodes
            for column, part in episode.videos.items()
            if column in used
        )
        for (path, _, end, index), (other, start, _, following) in pairwise(parts):
            if path == other and end - start > 0.5 / fps:
                raise DataSetError(
                    f'from_timestamp of episode {following} must be >= {end:.4f} s, where episode '
                    f'{index} ends in {path} (got {start:.4f} s, an offset of '
                    f'{start - end:+.4f} s); write the data set again'
                )

    # ------------------------------------------------------------------ an episode

    def _numbers(self, index: int) -> EpisodeArrays:
        """Return an episode without its images."""
        episode, robot, vectors = self._episodes[index], self._robot, self._columns.numbers
        where = f'{self._root}: episode {episode.index}'
        table = self._rows(index)
        check_frames(table, episode.length, robot.contract.fps, where)

        def vector(key: str, size: int) -> np.ndarray:
            found = numbers(table[vectors[key]], vectors[key], size, where)
            order = self._columns.orders.get(key)
            return found if order is None else found[:, order]

        return EpisodeArrays(
            vector(STATE, len(robot.state.dimensions)),
            vector(ACTION, len(robot.actions.dimensions)),
            _texts(table, 'task', self._tasks, where),
            {},
            {
                name: numbers(table[key], key, 3, where, holes=True)
                for key, name in self._positions.items()
            },
            {
                place: numbers(table[key], key, 2, where, holes=True)
                for key, place in self._pixels.items()
            },
            _texts(table, 'subtask', self._subtasks, where) if self.has_subtasks else (),
            {},
        )

    def _rows(self, index: int) -> pa.Table:
        """Return the numbers of an episode; those of its file are kept for the next episodes."""
        episode = self._episodes[index]
        if self._last is None or self._last[0] != episode.data:
            table = self._files.table(episode.data, columns=self._needed)
            vectors = [*self._columns.numbers.values()]
            check_columns(table, self._needed, f'{episode.data}', vectors)
            self._last = episode.data, table
        table = self._last[1]
        return table.filter(pc.equal(table['episode_index'], episode.index))

    def _images(
        self, index: int, camera: Camera, convert: Convert
    ) -> tuple[np.ndarray, tuple[int, int]]:
        """Return the converted images of an episode, and their width and height before."""
        shapes: set[tuple[int, ...]] = set()

        def converted(image: np.ndarray) -> np.ndarray:
            shapes.add(image.shape)
            return convert(image)

        column, episode = camera.column, self._episodes[index]
        where = f'{self._root}: episode {episode.index}: {column}'
        try:
            if camera.is_video:
                found = self._from_video(index, camera, converted)
            else:
                only = [('episode_index', '==', episode.index)]
                table = self._files.table(episode.data, columns=[column], filters=only)
                check_columns(table, [column], f'{episode.data}')
                found = [
                    converted(pictures.decoded(self._bytes(picture), camera.channels))
                    for picture in table[column].to_pylist()
                ]
        except ValueError as error:
            raise DataSetError(f'{where}: {error}') from error
        if len(shapes) > 1:
            raise DataSetError(f'{where}: its pictures have several sizes')
        height, width, _ = shapes.pop()
        return np.stack(found), (width, height)

    def _bytes(self, picture: Mapping[str, Any]) -> bytes:
        """Return an image file: of the table, or the one that the table names."""
        if picture['bytes'] is not None:
            return picture['bytes']
        return self._files.inside(self._root / picture['path']).read_bytes()

    def _from_video(self, index: int, camera: Camera, convert: Convert) -> list[np.ndarray]:
        part, fps = self._episodes[index].videos[camera.column], self._robot.contract.fps
        stamps = self._rows(index)['timestamp'].to_numpy()
        times = part.start + stamps.astype(np.float64)
        known = camera.channels, camera.codec
        return read_frames(part.path, times.tolist(), fps, *known, convert)


def _texts(table: pa.Table, kind: str, words: Mapping[int, str], where: str) -> tuple[str, ...]:
    """Return the text of each frame. kind: task or subtask."""
    numbered = table[f'{kind}_index'].to_pylist()
    if unknown := set(numbered) - words.keys():
        raise DataSetError(
            f'{where}: {kind} {unknown.pop()} must have a text in meta/{kind}s (got none); add it'
        )
    return tuple(words[number] for number in numbered)


@contextmanager
def _named(root: Path) -> Iterator[None]:
    """Put the folder into each error; convert errors of damaged files."""
    try:
        yield
    except DataSetError as error:
        is_named = str(root) in str(error)
        raise error if is_named else DataSetError(f'{root}: {error}') from error
    except (LookupError, TypeError, AttributeError, ValueError, pa.ArrowException) as error:
        raise DataSetError(
            f'{root} is damaged, or not as LeRobot writes it: {type(error).__name__}: '
            f'{reason(error)}'
        ) from error
