"""Episodes into a data set of LeRobot's layout, version 3.0.

Knows arrays and files. Does not know recordings. Pictures lie in the data files, as bytes: no
video is made of them, so nothing of them is lost.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """One episode. state [T, D], action [T, A]: the policy's; images: bytes of T pictures a view.

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
        self._numbers: dict[str, list[np.ndarray]] = {}
        self._levels: dict[str, np.ndarray] = {}
        self._looked: dict[str, int] = {}
        self._file, self._writer, self.frames = -1, None, 0

    @property
    def episodes(self) -> int:
        """So many are written."""
        return len(self._episodes)

    def add(self, episode: Frames) -> None:
        """The next one. Raises ValueError where it does not fit those before."""
        sizes = {view: self._size(view, data) for view, data in episode.images.items()}
        more = self._optional(episode)
        self._describe(features(self._robot, sizes, more), sizes)
        columns = self._columns(episode) | self._numbered(more)
        stats = self._stats(columns, episode)
        place = self._write(columns)
        start, self.frames = self.frames, self.frames + len(episode)
        self._episodes.append(
            {
                'episode_index': self.episodes,
                'tasks': [episode.task],
                'length': len(episode),
                **place,
                'dataset_from_index': start,
                'dataset_to_index': self.frames,
                'meta/episodes/chunk_index': 0,
                'meta/episodes/file_index': 0,
                **{f'stats/{key}/{n}': v for key, s in stats.items() for n, v in s.items()},
            }
        )

    def finish(self) -> None:
        """All of meta/. Raises ValueError where no episode came."""
        if not self._episodes:
            raise ValueError('no episode: there is nothing to write')
        self._writer.close()
        self._save(EPISODES.format(chunk_index=0, file_index=0), self._table_of_episodes())
        self._save(TASKS, _table_of_words('task', tuple(self._tasks)))
        if self._subtasks:
            self._save(SUBTASKS, _table_of_words('subtask', tuple(self._subtasks)))
        self._dump(STATS, self._total())
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

    def _columns(self, episode: Frames) -> dict[str, Any]:
        count = len(episode)
        task = self._tasks.setdefault(episode.task, len(self._tasks))
        index = np.arange(count)
        counted = (
            (index / self._robot.contract.fps).astype(np.float32),
            index,
            np.full(count, self.episodes),
            index + self.frames,
            np.full(count, task),
        )
        return {
            STATE: episode.state.astype(np.float32),
            ACTION: episode.action.astype(np.float32),
            **{image_key(view): data for view, data in episode.images.items()},
            INTERVENTION: episode.interventions.astype(bool),
            **dict(zip(COUNTED, counted, strict=True)),
        }

    def _stats(self, columns: dict[str, Any], episode: Frames) -> dict[str, Stats]:
        found = {}
        for key, values in columns.items():
            if isinstance(values, list):
                chosen = statistics.sampled(len(values))
                levels = sum(statistics.histogram(pictures.decoded(values[i])) for i in chosen)
                self._levels[key] = self._levels.get(key, 0) + levels
                self._looked[key] = self._looked.get(key, 0) + len(chosen)
                found[key] = statistics.of_histogram(levels, len(chosen))
            else:
                numbers = values.reshape(len(episode), -1)
                self._numbers.setdefault(key, []).append(numbers)
                found[key] = statistics.of_numbers(numbers)
        return found

    def _write(self, columns: dict[str, Any]) -> dict[str, int]:
        """A row group of its own; a file that is large enough is followed by another."""
        if self._writer is None or self._path.stat().st_size > DATA_MIB * 2**20:
            self._open_next()
        kinds = schema(self._described)
        arrays = [_array(columns[field.name], field.type) for field in kinds]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=kinds))
        return {
            'data/chunk_index': self._file // FILES,
            'data/file_index': self._file % FILES,
        }

    def _open_next(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file += 1
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(self._path, schema(self._described))

    @property
    def _path(self) -> Path:
        name = DATA.format(chunk_index=self._file // FILES, file_index=self._file % FILES)
        return self.root / name

    # ------------------------------------------------------------------ the whole

    def _total(self) -> dict[str, Stats]:
        numbers = {
            key: statistics.of_numbers(np.concatenate(parts))
            for key, parts in self._numbers.items()
        }
        images = {
            key: statistics.of_histogram(levels, self._looked[key])
            for key, levels in self._levels.items()
        }
        return {key: (numbers | images)[key] for key in self._described}

    def _table_of_episodes(self) -> pa.Table:
        return pa.Table.from_pylist(self._episodes)

    def _save(self, name: str, table: pa.Table) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)

    def _dump(self, name: str, content: object) -> None:
        (self.root / name).write_text(json.dumps(content, indent=1, allow_nan=False) + '\n')


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, list):
        return pa.array([{'bytes': data, 'path': None} for data in values], kind)
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
