"""Write episodes to a data set of LeRobot's layout, version 3.0.

The data files contain the bytes of the images, without loss; there are no videos. An episode may
come in parts. Each part is written as a row group, so that the images of one part are held in
memory. Statistics of images are stored as histograms; those of numbers are computed at the end
from the files, column by column.
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

    state [T, D], action [T, A]: in the policy's units. images: bytes of T image files by view.
    interventions: bool [T], whether an operator moved the arm. positions: float32 [T, 3] (m) by
    object, NaN if it is absent. pixels: float32 [T, 2] by (view, object), column and row in the
    image, NaN if it is not visible. subtasks: the text of each frame. All episodes of a data set
    have the same keys of these three.
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
    """A new data set in an empty or new folder. Raises ValueError, OSError."""

    def __init__(self, root: Path | str, robot: Embodiment) -> None:
        root = Path(root)
        if robot.contract.fps != round(robot.contract.fps):
            raise ValueError(
                f'fps must be an integer for LeRobot (got {robot.contract.fps:g}); change the '
                'contract'
            )
        if root.exists() and any(root.iterdir()):
            raise ValueError(f'{root} must be empty; choose a new folder')
        self.root, self._robot = root, robot
        self._described: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, int] = {}
        self._subtasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._stats: list[dict[str, Stats | None]] = []  # of each episode; numbers come last
        self._levels: dict[str, np.ndarray] = {}
        self._sampled: dict[str, int] = {}
        self._file, self.frames = -1, 0
        self._writer: pq.ParquetWriter | None = None

    @property
    def episodes(self) -> int:
        """Return the number of written episodes."""
        return len(self._episodes)

    def add(self, episode: Frames) -> None:
        """Add the next episode. Raises ValueError if it does not fit the others."""
        self.add_parts([episode], len(episode))

    def add_parts(self, parts: Iterable[Frames], length: int) -> None:
        """Add an episode that comes in parts, and write each as a row group before the next.

        Args:
            parts: Consecutive frames of one episode; all parts have its task.
            length: Number of frames of all parts.

        Raises:
            ValueError: A part does not match the frames before it. `finish` then refuses the data
                set, unless it was the first part.
        """
        start, sample = self.frames, _ImageSample(length)
        place: dict[str, int] = {}
        for part in parts:
            shapes = {view: self._shape(view, data) for view, data in part.images.items()}
            more = self._optional(part)
            self._describe(features(self._robot, shapes, more), shapes)
            columns = self._columns(part, self.frames - start) | self._numbered(more)
            sample.add(columns, self.frames - start)
            place = place or self._open()
            self._write(columns)
            self.frames += len(part)
        if self.frames - start != length or not length:
            raise ValueError(
                f'length of episode {self.episodes} must be that of its parts, and > 0 (got '
                f'{length} and {self.frames - start} frames)'
            )
        for key, levels in sample.levels.items():
            self._levels[key] = self._levels.get(key, 0) + levels
            self._sampled[key] = self._sampled.get(key, 0) + len(sample.chosen)
        self._stats.append(sample.stats())
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
        """Write meta/. Raises ValueError without an episode, or after an episode that failed."""
        if not self._episodes:
            raise ValueError('a data set must have an episode (got none)')
        if self.frames != self._episodes[-1]['dataset_to_index']:
            raise ValueError(
                'the data set contains a part of an episode that failed; export again'
            )
        assert self._writer is not None
        self._writer.close()
        self._write_meta(self._complete_stats())

    @property
    def _info(self) -> dict[str, Any]:
        """Return the content of meta/info.json."""
        return info(self._robot, self._described, self.episodes, self.frames, len(self._tasks))

    # ------------------------------------------------------------------ by version

    def _write_meta(self, total: dict[str, Stats]) -> None:
        """Write meta/. total: statistics of all frames."""
        self._save(EPISODES.format(chunk_index=0, file_index=0), self._table_of_episodes())
        self._save(TASKS, _table_of_words('task', tuple(self._tasks)))
        if self._subtasks:
            self._save(SUBTASKS, _table_of_words('subtask', tuple(self._subtasks)))
        self._dump(STATS, total)
        self._dump(INFO, self._info)

    def _data(self, file: int) -> Path:
        """Return the path of a data file."""
        return self.root / DATA.format(chunk_index=file // FILES, file_index=file % FILES)

    def _is_full(self) -> bool:
        """Return whether the next episode starts a new data file."""
        return self._data(self._file).stat().st_size > DATA_MIB * 2**20

    def _schema(self) -> pa.Schema:
        return schema(self._described)

    # ------------------------------------------------------------------ an episode

    def _describe(self, described: dict[str, dict[str, Any]], shapes: dict) -> None:
        before = self._described or described
        if odd := described.keys() ^ before.keys():
            raise ValueError(
                f'episode {self.episodes}: {min(odd)} must be a column of all episodes or of '
                'none; write NaN for unknown values'
            )
        if described != before:
            raise ValueError(
                f'episode {self.episodes} must have images of the size of the others (got '
                f'{shapes}); export recordings of one size'
            )
        self._described = described

    def _optional(self, episode: Frames) -> dict[str, np.ndarray]:
        """Return the optional columns."""
        keys = [(position_key(name), values) for name, values in episode.positions.items()]
        keys += [(pixel_key(*place), values) for place, values in episode.pixels.items()]
        found = {key: np.asarray(values, np.float32) for key, values in keys}
        if twice := [key for key, n in Counter(key for key, _ in keys).items() if n > 1]:
            raise ValueError(
                f'{twice[0]} must be the column of one object (got two names that differ in '
                'spaces and underscores only); rename one'
            )
        if len(episode.subtasks):
            found[SUBTASK] = np.array(episode.subtasks, object)
        if odd := [key for key, values in found.items() if len(values) != len(episode)]:
            raise ValueError(f'{odd[0]} must have one row for each frame of the episode')
        return found

    def _numbered(self, more: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Replace the texts of subtasks by their numbers."""
        if SUBTASK not in more:
            return more
        index = [self._subtasks.setdefault(text, len(self._subtasks)) for text in more[SUBTASK]]
        return more | {SUBTASK: np.array(index)}

    def _shape(self, view: str, images: list[bytes]) -> tuple[int, int, int]:
        """Return (height, width, channels)."""
        shapes = {pictures.shape(image) for image in images}
        if len(shapes) > 1:
            raise ValueError(f'images of {view} must have one size (got {sorted(shapes)})')
        return shapes.pop()

    def _columns(self, episode: Frames, first: int) -> dict[str, Any]:
        """Return the columns of a part of an episode. first: the number of its first frame."""
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
        """Open the file of the next episode, and return its place."""
        if self._writer is None or self._is_full():
            if self._writer is not None:
                self._writer.close()
            self._file += 1
            path = self._data(self._file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, self._schema())
        return {'data/chunk_index': self._file // FILES, 'data/file_index': self._file % FILES}

    def _write(self, columns: dict[str, Any]) -> None:
        kinds = self._schema()
        arrays = [_array(columns[field.name], field.type) for field in kinds]
        assert self._writer is not None  # `_open` made it
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=kinds))

    # ------------------------------------------------------------------ the whole

    def _complete_stats(self) -> dict[str, Stats]:
        """Complete the statistics of each episode; return those of all frames."""
        total = {}
        for key, feature in self._described.items():
            if feature['dtype'] == 'image':
                total[key] = statistics.of_histogram(self._levels[key], self._sampled[key])
                continue
            numbers = self._read(key)
            for episode, stats in zip(self._episodes, self._stats, strict=True):
                rows = slice(episode['dataset_from_index'], episode['dataset_to_index'])
                stats[key] = statistics.of_numbers(numbers[rows])
            total[key] = statistics.of_numbers(numbers)
        return total

    def _read(self, key: str) -> np.ndarray:
        """Return a written column of numbers, [frames, dimensions]."""
        files = (self._data(file) for file in range(self._file + 1))
        parts = [pq.read_table(path, columns=[key])[key] for path in files]
        parts = [chunk for part in parts for chunk in part.chunks]
        if pa.types.is_fixed_size_list(parts[0].type):
            parts = [chunk.flatten() for chunk in parts]
        numbers = np.concatenate([chunk.to_numpy(zero_copy_only=False) for chunk in parts])
        return numbers.reshape(self.frames, -1)

    def _table_of_episodes(self) -> pa.Table:
        rows = zip(self._episodes, self._stats, strict=True)
        return pa.Table.from_pylist(
            [
                episode
                | {f'stats/{key}/{n}': v for key, s in stats.items() if s for n, v in s.items()}
                for episode, stats in rows
            ]
        )

    def _save(self, name: str, table: pa.Table) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)

    def _dump(self, name: str, content: object) -> None:
        (self.root / name).write_text(json.dumps(content, indent=1, allow_nan=False) + '\n')


class _ImageSample:
    """Histograms of some images of an episode. chosen: their frames. levels: by column."""

    def __init__(self, length: int) -> None:
        self.chosen = statistics.sampled(length)
        self.levels: dict[str, np.ndarray] = {}
        self._keys: tuple[str, ...] = ()

    def add(self, columns: Mapping[str, Any], first: int) -> None:
        """Add the next part of the episode. first: the number of its first frame."""
        self._keys = tuple(columns)
        for key, values in columns.items():
            if isinstance(values, list):
                for i in self.chosen:
                    if first <= i < first + len(values):
                        levels = statistics.histogram(pictures.decoded(values[i - first]))
                        self.levels[key] = self.levels.get(key, 0) + levels

    def stats(self) -> dict[str, Stats | None]:
        """Return the statistics by column; None for those of numbers, which are still unknown."""
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
    """Return the table of tasks or subtasks, whose texts are the index for pandas."""
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
