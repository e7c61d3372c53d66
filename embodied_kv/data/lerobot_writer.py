"""Episodes into a data set of LeRobot's layout, version 3.0.

Knows arrays and files. Does not know recordings. Pictures lie in the data files, as bytes: no
video is made of them, so nothing of them is lost.

An episode may come in parts, each of which is written as a row group, so a part is all that is
held of its pictures. Statistics of pictures are kept as histograms; those of numbers are taken at
the end, from the files, one column after the other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embodied_kv.data import pictures, statistics
from embodied_kv.data.lerobot_layout import (
    ACTION,
    COUNTED,
    DATA,
    DATA_MIB,
    EPISODES,
    FILES,
    INFO,
    INTERVENTION,
    STATE,
    STATS,
    SUBTASK,
    SUBTASKS,
    TASKS,
    features,
    image_key,
    info,
    pixel_key,
    position_key,
    schema,
)
from embodied_kv.data.statistics import Stats
from embodied_kv.robots.embodiment import Embodiment


@dataclass(frozen=True, eq=False)
class Frames:
    """One episode, or a part of it.

    state [T, D], action [T, A]: the policy's; images: bytes of T pictures a view.
    interventions: bool [T], whether an operator moved the arm. positions: float32 [T, 3] of each
    object, m, NaN where it is not there. pixels: float32 [T, 2] by (view, object): column and row
    in the view's picture, NaN where it is not seen. subtasks: what is done in each frame, in
    words; all episodes of a data set have the same of these three.
    """

    task: str
    state: np.ndarray
    action: np.ndarray
    interventions: np.ndarray
    images: dict[str, list[bytes]]
    positions: Mapping[str, np.ndarray] = field(default_factory=dict)
    pixels: Mapping[tuple[str, str], np.ndarray] = field(default_factory=dict)
    subtasks: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.state)


class LeRobotWriter:
    """A new data set in a folder that is empty or not there yet. Raises ValueError, OSError."""

    def __init__(self, root: Path | str, robot: Embodiment) -> None:
        root = Path(root)
        if robot.contract.fps != round(robot.contract.fps):
            raise ValueError(
                f'fps {robot.contract.fps:g}: LeRobot counts whole frames per second: change the '
                'fps of the contract'
            )
        if root.exists() and any(root.iterdir()):
            raise ValueError(f'{root} is not empty: name a new folder')
        self.root, self._robot = root, robot
        self._described: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, int] = {}
        self._subtasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._looks: list[dict[str, Stats | None]] = []  # of each episode; numbers come last
        self._levels: dict[str, np.ndarray] = {}
        self._looked: dict[str, int] = {}
        self._file, self.frames = -1, 0
        self._writer: pq.ParquetWriter | None = None

    @property
    def episodes(self) -> int:
        """So many are written."""
        return len(self._episodes)

    def add(self, episode: Frames) -> None:
        """The next one. Raises ValueError where it does not fit those before."""
        self.add_parts([episode], len(episode))

    def add_parts(self, parts: Iterable[Frames], length: int) -> None:
        """Add an episode that comes in parts, and write each as a row group before the next.

        Args:
            parts: Consecutive frames of one episode; all parts have its task.
            length: Number of frames of all parts.

        Raises:
            ValueError: A part does not fit what came before. `finish` refuses the data set
                then, unless it was the first part.
        """
        start, looked = self.frames, _Looked(length)
        place: dict[str, int] = {}
        for part in parts:
            sizes = {view: self._size(view, data) for view, data in part.images.items()}
            more = self._optional(part)
            self._describe(features(self._robot, sizes, more), sizes)
            columns = self._columns(part, self.frames - start) | self._numbered(more)
            looked.take(columns, self.frames - start)
            place = place or self._open()
            self._write(columns)
            self.frames += len(part)
        if self.frames - start != length or not length:
            raise ValueError(
                f'length of episode {self.episodes} must be that of its parts, and > 0 (got '
                f'{length} and {self.frames - start} frames)'
            )
        for key, levels in looked.levels.items():
            self._levels[key] = self._levels.get(key, 0) + levels
            self._looked[key] = self._looked.get(key, 0) + len(looked.chosen)
        self._looks.append(looked.stats())
        self._episodes.append(
            {
                'episode_index': self.episodes,
                'tasks': [part.task],
                'length': length,
                **place,
                'dataset_from_index': start,
                'dataset_to_index': self.frames,
                'meta/episodes/chunk_index': 0,
                'meta/episodes/file_index': 0,
            }
        )

    def finish(self) -> None:
        """All of meta/. Raises ValueError where no episode came."""
        if not self._episodes:
            raise ValueError('no episode: there is nothing to write')
        if self.frames != self._episodes[-1]['dataset_to_index']:
            raise ValueError(
                'the data set contains a part of an episode that failed; export again'
            )
        assert self._writer is not None
        self._writer.close()
        total = self._take_stats()
        self._save(EPISODES.format(chunk_index=0, file_index=0), self._table_of_episodes())
        self._save(TASKS, _table_of_words('task', tuple(self._tasks)))
        if self._subtasks:
            self._save(SUBTASKS, _table_of_words('subtask', tuple(self._subtasks)))
        self._dump(STATS, total)
        counts = self.episodes, self.frames, len(self._tasks)
        self._dump(INFO, info(self._robot, self._described, *counts))

    # ------------------------------------------------------------------ an episode

    def _describe(self, described: dict[str, dict[str, Any]], sizes: dict) -> None:
        before = self._described or described
        if odd := described.keys() ^ before.keys():
            raise ValueError(
                f'episode {self.episodes}: {min(odd)} is a column of some episodes and not of '
                'others: give it to all, NaN where nothing is known'
            )
        if described != before:
            raise ValueError(
                f'episode {self.episodes} has pictures of {sizes}, those before had others: '
                'export recordings of one size'
            )
        self._described = described

    def _optional(self, episode: Frames) -> dict[str, np.ndarray]:
        """Columns that a data set may have or not."""
        keys = [(position_key(name), values) for name, values in episode.positions.items()]
        keys += [(pixel_key(*place), values) for place, values in episode.pixels.items()]
        found = {key: np.asarray(values, np.float32) for key, values in keys}
        if twice := [key for key, n in Counter(key for key, _ in keys).items() if n > 1]:
            raise ValueError(
                f'{twice[0]} would be the column of two objects, whose names differ in spaces and '
                'underscores alone: rename one'
            )
        if len(episode.subtasks):
            found[SUBTASK] = np.array(episode.subtasks, object)
        if odd := [key for key, values in found.items() if len(values) != len(episode)]:
            raise ValueError(f'{odd[0]} has not as many rows as the episode has frames')
        return found

    def _numbered(self, more: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """With the numbers of subtasks in place of their words."""
        if SUBTASK not in more:
            return more
        index = [self._subtasks.setdefault(text, len(self._subtasks)) for text in more[SUBTASK]]
        return more | {SUBTASK: np.array(index)}

    def _size(self, view: str, images: list[bytes]) -> tuple[int, int]:
        sizes = {pictures.size(image) for image in images}
        if len(sizes) > 1:
            raise ValueError(f'pictures of {view} have several sizes: {sorted(sizes)}')
        return sizes.pop()

    def _columns(self, episode: Frames, first: int) -> dict[str, Any]:
        """Of a part of the present episode. first: the number of its first frame."""
        count = len(episode)
        task = self._tasks.setdefault(episode.task, len(self._tasks))
        index = np.arange(first, first + count)
        counted = (
            (index / self._robot.contract.fps).astype(np.float32),
            index,
            np.full(count, self.episodes),
            index - first + self.frames,
            np.full(count, task),
        )
        return {
            STATE: episode.state.astype(np.float32),
            ACTION: episode.action.astype(np.float32),
            **{image_key(view): data for view, data in episode.images.items()},
            INTERVENTION: episode.interventions.astype(bool),
            **dict(zip(COUNTED, counted, strict=True)),
        }

    def _open(self) -> dict[str, int]:
        """Return the file of the next episode; one that is large enough is followed by another."""
        if self._writer is None or self._path.stat().st_size > DATA_MIB * 2**20:
            self._open_next()
        return {
            'data/chunk_index': self._file // FILES,
            'data/file_index': self._file % FILES,
        }

    def _write(self, columns: dict[str, Any]) -> None:
        """Write a row group."""
        kinds = schema(self._described)
        arrays = [_array(columns[field.name], field.type) for field in kinds]
        assert self._writer is not None  # `_open` made it
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=kinds))

    def _open_next(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file += 1
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(self._path, schema(self._described))

    @property
    def _path(self) -> Path:
        return self._data(self._file)

    def _data(self, file: int) -> Path:
        return self.root / DATA.format(chunk_index=file // FILES, file_index=file % FILES)

    # ------------------------------------------------------------------ the whole

    def _take_stats(self) -> dict[str, Stats]:
        """Complete the statistics of each episode; return those of all frames."""
        total = {}
        for key, feature in self._described.items():
            if feature['dtype'] == 'image':
                total[key] = statistics.of_histogram(self._levels[key], self._looked[key])
                continue
            numbers = self._read(key)
            for episode, looks in zip(self._episodes, self._looks, strict=True):
                rows = slice(episode['dataset_from_index'], episode['dataset_to_index'])
                looks[key] = statistics.of_numbers(numbers[rows])
            total[key] = statistics.of_numbers(numbers)
        return total

    def _read(self, key: str) -> np.ndarray:
        """Return a column of numbers that was written, [frames, dimensions]."""
        files = (self._data(file) for file in range(self._file + 1))
        parts = [pq.read_table(path, columns=[key])[key] for path in files]
        parts = [chunk for part in parts for chunk in part.chunks]
        if pa.types.is_fixed_size_list(parts[0].type):
            parts = [chunk.flatten() for chunk in parts]
        numbers = np.concatenate([chunk.to_numpy(zero_copy_only=False) for chunk in parts])
        return numbers.reshape(self.frames, -1)

    def _table_of_episodes(self) -> pa.Table:
        rows = zip(self._episodes, self._looks, strict=True)
        return pa.Table.from_pylist(
            [
                episode
                | {f'stats/{key}/{n}': v for key, s in looks.items() if s for n, v in s.items()}
                for episode, looks in rows
            ]
        )

    def _save(self, name: str, table: pa.Table) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)

    def _dump(self, name: str, content: object) -> None:
        (self.root / name).write_text(json.dumps(content, indent=1, allow_nan=False) + '\n')


class _Looked:
    """What some pictures of an episode look like. chosen: their numbers.

    levels: by column, the histogram of those that have come.
    """

    def __init__(self, length: int) -> None:
        self.chosen = statistics.sampled(length)
        self.levels: dict[str, np.ndarray] = {}
        self._keys: tuple[str, ...] = ()

    def take(self, columns: Mapping[str, Any], first: int) -> None:
        """Take the next part of the episode. first: the number of its first frame."""
        self._keys = tuple(columns)
        for key, values in columns.items():
            if isinstance(values, list):
                for i in self.chosen:
                    if first <= i < first + len(values):
                        levels = statistics.histogram(pictures.decoded(values[i - first]))
                        self.levels[key] = self.levels.get(key, 0) + levels

    def stats(self) -> dict[str, Stats | None]:
        """Return the statistics by column; None for those of numbers, which are not known yet."""
        count = len(self.chosen)
        return dict.fromkeys(self._keys) | {
            key: statistics.of_histogram(levels, count) for key, levels in self.levels.items()
        }


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, list):
        data, paths = pa.array(values, pa.binary()), pa.nulls(len(values), pa.string())
        return pa.StructArray.from_arrays([data, paths], fields=list(kind))
    if values.ndim == 2 and pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), type=kind)
    return pa.array(values.reshape(len(values)), kind)


def _table_of_words(kind: str, words: tuple[str, ...]) -> pa.Table:
    """Tasks or subtasks by their words, which readers in pandas have as an index."""
    number = f'{kind}_index'
    columns = [
        {'name': number, 'field_name': number, 'pandas_type': 'int64'},
        {'name': kind, 'field_name': kind, 'pandas_type': 'unicode'},
    ]
    kinds = ('int64', 'object')
    described = {
        'index_columns': [kind],
        'column_indexes': [],
        'columns': [
            {**column, 'numpy_type': kind, 'metadata': None}
            for column, kind in zip(columns, kinds, strict=True)
        ],
        'pandas_version': '2.0.0',
    }
    table = pa.table({number: pa.array(range(len(words)), pa.int64()), kind: words})
    return table.replace_schema_metadata({'pandas': json.dumps(described)})
