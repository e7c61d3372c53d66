"""A LeRobot data set, version 3.0, as arrays by a robot's contract.

Knows files. What does not fit is refused when the data set is opened (`lerobot_checks`); pictures
are decoded, and refused, when an episode is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embodied_kv.data import pictures
from embodied_kv.data.lerobot_layout import (
    ACTION,
    INFO,
    POSITION,
    STATE,
    SUBTASK,
    SUBTASKS,
    TASKS,
    VERSION,
    image_key,
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
    check_names,
    check_totals,
    numbers,
)
from training.data.videos import read_frames

OF_EPISODES = ['episode_index', 'length', 'data/chunk_index', 'data/file_index']
NUMBERS = [STATE, ACTION, 'timestamp', 'frame_index', 'episode_index', 'task_index']


@dataclass(frozen=True, eq=False)
class EpisodeArrays:
    """state: float32 [T, D], action: float32 [T, A], the policy's. tasks: of each frame.

    images: uint8 [T, height, width, 3] by the contract's view. Where the data set has such
    columns: positions, float32 [T, 3] of each object, m; pixels, float32 [T, 2] by (view, object),
    column and row in a picture of the view; both NaN where nothing is known; subtasks, of each
    frame.
    """

    state: np.ndarray
    action: np.ndarray
    tasks: tuple[str, ...]
    images: dict[str, np.ndarray]
    positions: dict[str, np.ndarray]
    pixels: dict[tuple[str, str], np.ndarray]
    subtasks: tuple[str, ...]


class LeRobotDataSet:
    """Opened and checked for a robot; `read` gives its episodes. Raises DataSetError, OSError."""

    def __init__(self, root: Path | str, robot: Embodiment) -> None:
        self._root, self._robot = Path(root), robot
        with _said(self._root):
            self.info = self._read_info()
            check_info(self.info, robot)
            self._tasks = self._read_words(TASKS, 'task')
            self._positions, self._pixels = self._find_objects()
            self._subtasks = {}
            if SUBTASK in self.info['features']:
                self._subtasks = self._read_words(SUBTASKS, 'subtask')
            self._episodes = self._read_episodes()
            self.lengths = tuple(episode['length'] for episode in self._episodes)
            check_totals(self.info, self.lengths)
            for index in range(len(self)):
                self._numbers(index)

    def __len__(self) -> int:
        return len(self._episodes)

    @property
    def objects(self) -> tuple[str, ...]:
        """Those whose positions it knows, by name."""
        return tuple(self._positions.values())

    @property
    def has_subtasks(self) -> bool:
        """Whether it says what is done in each frame."""
        return bool(self._subtasks)

    def read(self, index: int) -> EpisodeArrays:
        """An episode. Raises DataSetError where its pictures cannot be read."""
        with _said(self._root):
            images = {view: self._images(index, view) for view in self._robot.contract.views}
            return replace(self._numbers(index), images=images)

    # ------------------------------------------------------------------ meta/

    def _read_info(self) -> Mapping[str, Any]:
        path = self._root / INFO
        if not path.is_file():
            raise DataSetError(f'{self._root} has no {INFO}: it is no LeRobot data set')
        try:
            info = json.loads(path.read_text(encoding='utf-8'))
            version = info['codebase_version']
            _ = info['fps'], info['features'], info['data_path']
        except (ValueError, KeyError, TypeError) as error:
            raise DataSetError(f'{path} is damaged: {error!r}') from error
        if version != VERSION:
            raise DataSetError(
                f'{self._root} is of version {version}, not {VERSION}: convert it with '
                "LeRobot's convert_dataset_v21_to_v30"
            )
        return info

    def _read_words(self, file: str, kind: str) -> dict[int, str]:
        """Tasks, or subtasks, by their numbers."""
        table, number = self._table(self._root / file), f'{kind}_index'
        words = kind if kind in table.column_names else '__index_level_0__'
        check_columns(table, [number, words], f'{self._root / file}')
        return dict(zip(table[number].to_pylist(), table[words].to_pylist(), strict=True))

    def _find_objects(self) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        """Of each column of positions the object, and of each of pixels the view and object."""
        there = self.info['features']
        positions = {key: name_of(key) for key in there if key.startswith(POSITION)}
        pixels = {
            pixel_key(view, name): (view, name)
            for view in self._robot.contract.views
            for name in positions.values()
        }
        return positions, {key: place for key, place in pixels.items() if key in there}

    def _read_episodes(self) -> list[dict[str, Any]]:
        files = sorted((self._root / 'meta' / 'episodes').glob('*/*.parquet'))
        rows: list[dict[str, Any]] = []
        for path in files:
            table = self._table(path)
            named = [name for name in table.column_names if not name.startswith('stats/')]
            check_columns(table, OF_EPISODES, f'{path}')
            rows += table.select(named).to_pylist()
        if not rows:
            raise DataSetError(f'{self._root} has no episode')
        return rows

    # ------------------------------------------------------------------ data/

    def _numbers(self, index: int) -> EpisodeArrays:
        """An episode without its pictures."""
        episode, robot = self._episodes[index], self._robot
        where = f'{self._root}: episode {episode["episode_index"]}'
        more = [*self._positions, *self._pixels, *[SUBTASK] * self.has_subtasks]
        table = self._rows(index, NUMBERS + more)
        check_frames(table, episode['length'], robot.contract.fps, where)
        state = numbers(table[STATE], STATE, len(robot.state.dimensions), where)
        action = numbers(table[ACTION], ACTION, len(robot.actions.dimensions), where)
        return EpisodeArrays(
            state,
            action,
            _told(table, 'task_index', self._tasks, f'{where}: task', TASKS),
            {},
            {
                name: numbers(table[key], key, 3, where, holes=True)
                for key, name in self._positions.items()
            },
            {
                place: numbers(table[key], key, 2, where, holes=True)
                for key, place in self._pixels.items()
            },
            _told(table, SUBTASK, self._subtasks, f'{where}: subtask', SUBTASKS)
            if self.has_subtasks
            else (),
        )

    def _rows(self, index: int, columns: list[str]) -> pa.Table:
        episode = self._episodes[index]
        path = self._file(
            self.info['data_path'],
            chunk_index=episode['data/chunk_index'],
            file_index=episode['data/file_index'],
        )
        only = [('episode_index', '==', episode['episode_index'])]
        table = self._table(path, columns=columns, filters=only)
        check_columns(table, columns, f'{path}')
        return table

    def _images(self, index: int, view: str) -> np.ndarray:
        key, episode = image_key(view), self._episodes[index]
        where = f'{self._root}: episode {episode["episode_index"]}: {key}'
        try:
            if self.info['features'][key]['dtype'] == 'video':
                found = self._from_video(key, episode)
            else:
                column = self._rows(index, [key])[key].to_pylist()
                found = [pictures.decoded(self._bytes(picture)) for picture in column]
        except ValueError as error:
            raise DataSetError(f'{where}: {error}') from error
        if len({image.shape for image in found}) > 1:
            raise DataSetError(f'{where}: its pictures have several sizes')
        return np.stack(found)

    def _bytes(self, picture: Mapping[str, Any]) -> bytes:
        """Of a picture in the table, or of the file that it names."""
        if picture['bytes'] is not None:
            return picture['bytes']
        return self._inside(self._root / picture['path']).read_bytes()

    def _from_video(self, key: str, episode: Mapping[str, Any]) -> list[np.ndarray]:
        path = self._file(
            self.info['video_path'],
            video_key=key,
            chunk_index=episode[f'videos/{key}/chunk_index'],
            file_index=episode[f'videos/{key}/file_index'],
        )
        start = episode[f'videos/{key}/from_timestamp']
        return read_frames(path, start, episode['length'], self._robot.contract.fps)

    # ------------------------------------------------------------------ files

    def _file(self, pattern: str, **names: object) -> Path:
        try:
            path = self._root / pattern.format(**names)
        except (KeyError, IndexError, AttributeError, ValueError) as error:
            raise DataSetError(f'{self._root}: {INFO} names no file: {pattern}') from error
        return self._inside(path)

    def _inside(self, path: Path) -> Path:
        if not path.resolve().is_relative_to(self._root.resolve()):
            raise DataSetError(f'{self._root} names a file outside of itself: {path}')
        return path

    def _table(self, path: Path, **options: object) -> pa.Table:
        try:
            check_names(pq.read_schema(path).names, options.get('columns', ()), f'{path}')
            return pq.read_table(path, **options)
        except (pa.ArrowException, FileNotFoundError) as error:
            raise DataSetError(f'{path} cannot be read: {reason(error)}') from error


def _told(
    table: pa.Table, key: str, words: Mapping[int, str], what: str, file: str
) -> tuple[str, ...]:
    """The words of each frame."""
    numbered = table[key].to_pylist()
    if unknown := set(numbered) - words.keys():
        raise DataSetError(f'{what} {unknown.pop()} is not in {file}')
    return tuple(words[number] for number in numbered)


@contextmanager
def _said(root: Path) -> Iterator[None]:
    """Every refusal names the data set; what is no such file is refused as well."""
    try:
        yield
    except DataSetError as error:
        named = str(root) in str(error)
        raise error if named else DataSetError(f'{root}: {error}') from error
    except (LookupError, TypeError, AttributeError, ValueError, pa.ArrowException) as error:
        raise DataSetError(
            f'{root} is damaged, or not as LeRobot writes it: {type(error).__name__}: '
            f'{reason(error)}'
        ) from error
