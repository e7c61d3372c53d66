"""Find the files of a LeRobot data set, versions 2.0, 2.1 and 3.0.

Version 3.0 keeps many episodes in a file and describes them in Parquet tables. Versions 2.0 and
2.1 keep one episode in a file and describe it in lines of JSON; they differ in statistics only.
Statistics are not read: training measures them, with quantiles, from the data.
Source: LeRobot 0.3.3 and 0.6.1, `lerobot/datasets`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embodied_kv.data.lerobot_layout import FILES, INFO, VERSION
from embodied_kv.text import reason, shown
from training.data.lerobot_checks import DataSetError, check_columns, check_names

PATTERN = re.compile(r'(?:[^{}]|\{\w+(?::\d{1,2}d)?\})+')  # with the numbers of an episode
LINES = 'v2.0', 'v2.1'  # versions whose descriptions are lines of JSON
OF_EPISODES = ['episode_index', 'length', 'data/chunk_index', 'data/file_index']


@dataclass(frozen=True)
class VideoPart:
    """The part of a video file that belongs to an episode. start: s in the file."""

    path: Path
    start: float = 0.0


@dataclass(frozen=True)
class EpisodeFiles:
    """Number, length (frames) and files of an episode. videos: by column."""

    index: int
    length: int
    data: Path
    videos: Mapping[str, VideoPart]


class DataSetFiles:
    """Files of a data set. info: content of meta/info.json. Raises DataSetError, OSError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.info = self._read_info()
        self._has_lines = self.info['codebase_version'] in LINES
        self._videos = [k for k, f in self.info['features'].items() if f['dtype'] == 'video']

    def words(self, kind: str) -> dict[int, str]:
        """Return the texts of tasks or subtasks by their numbers. kind: task or subtask."""
        number, path = f'{kind}_index', self.root / f'meta/{kind}s'
        if self._has_lines:
            return {row[number]: row[kind] for row in self._lines(path.with_suffix('.jsonl'))}
        path = path.with_suffix('.parquet')
        table = self.table(path)
        words = kind if kind in table.column_names else '__index_level_0__'
        check_columns(table, [number, words], f'{path}')
        return dict(zip(table[number].to_pylist(), table[words].to_pylist(), strict=True))

    def episodes(self) -> list[EpisodeFiles]:
        """Return all episodes in the order of their numbers."""
        found = self._episodes_of_lines() if self._has_lines else self._episodes_of_tables()
        if not found:
            raise DataSetError(f'{self.root} must contain an episode (got none); record some')
        return found

    def table(self, path: Path, **options: object) -> pa.Table:
        """Return a Parquet table. options: of `pyarrow.parquet.read_table`."""
        try:
            check_names(pq.read_schema(path).names, options.get('columns', ()), f'{path}')
            return pq.read_table(path, **options)
        except (pa.ArrowException, FileNotFoundError) as error:
            raise DataSetError(f'{path} cannot be read: {reason(error)}') from error

    def inside(self, path: Path) -> Path:
        """Return a path of the data set. Raises DataSetError if it leads out of its folder.

        By its names alone: in the cache of the hub each file is a link to another folder.
        """
        if not Path(normpath(path)).is_relative_to(normpath(self.root)):
            raise DataSetError(f'{self.root} names a file outside of itself: {path}')
        return path

    # ------------------------------------------------------------------ by version

    def _episodes_of_tables(self) -> list[EpisodeFiles]:
        rows: list[dict[str, Any]] = []
        for path in sorted((self.root / 'meta' / 'episodes').glob('*/*.parquet')):
            table = self.table(path)
            named = [name for name in table.column_names if not name.startswith('stats/')]
            check_columns(table, OF_EPISODES, f'{path}')
            rows += table.select(named).to_pylist()
        return [self._of_table(row) for row in rows]

    def _of_table(self, row: Mapping[str, Any]) -> EpisodeFiles:
        videos = {}
        for key in self._videos:
            of = f'videos/{key}/'
            if row.get(f'{of}chunk_index') is None:
                raise DataSetError(
                    f'episode {row["episode_index"]} must have {of}chunk_index in meta/episodes '
                    '(got none); write it with LeRobot 0.4 or later'
                )
            path = self._file(
                'video_path',
                video_key=key,
                chunk_index=row[f'{of}chunk_index'],
                file_index=row[f'{of}file_index'],
            )
            videos[key] = VideoPart(path, row[f'{of}from_timestamp'])
        place = {name: row[f'data/{name}'] for name in ('chunk_index', 'file_index')}
        data = self._file('data_path', **place)
        return EpisodeFiles(row['episode_index'], row['length'], data, videos)

    def _episodes_of_lines(self) -> list[EpisodeFiles]:
        rows = self._lines(self.root / 'meta/episodes.jsonl')
        size, found = self.info.get('chunks_size', FILES), []
        for row in sorted(rows, key=lambda row: row['episode_index']):
            index = row['episode_index']
            names = {'episode_chunk': index // size, 'episode_index': index}
            videos = {
                key: VideoPart(self._file('video_path', video_key=key, **names))
                for key in self._videos
            }
            data = self._file('data_path', **names)
            found.append(EpisodeFiles(index, row['length'], data, videos))
        return found

    # ------------------------------------------------------------------ files

    def _read_info(self) -> Mapping[str, Any]:
        path = self.root / INFO
        if not path.is_file():
            raise DataSetError(f'{self.root} has no {INFO}: it is no LeRobot data set')
        try:
            info = json.loads(path.read_text(encoding='utf-8'))
            version = info['codebase_version']
            _ = info['fps'], info['features'], info['data_path']
        except (ValueError, KeyError, TypeError) as error:
            raise DataSetError(f'{path} is damaged: {error!r}') from error
        if version not in (*LINES, VERSION):
            raise DataSetError(
                f'version of {self.root} must be one of {", ".join(LINES)}, {VERSION} (got '
                f'{shown(version)}); convert it with a LeRobot of its time'
            )
        return info

    def _lines(self, path: Path) -> list[Any]:
        """Return the values of a file with one JSON value in each line."""
        try:
            text = path.read_text(encoding='utf-8')
            return [json.loads(line) for line in text.split('\n') if line.strip()]
        except FileNotFoundError as error:
            raise DataSetError(f'{path} cannot be read: {reason(error)}') from error
        except ValueError as error:
            raise DataSetError(f'{path} is damaged: {reason(error)}') from error

    def _file(self, pattern: str, **names: object) -> Path:
        """Return the path of a pattern of meta/info.json."""
        text = self.info[pattern]
        if not PATTERN.fullmatch(str(text)):  # such as a width that takes all memory
            raise DataSetError(f'{self.root}: {INFO} names no file: {text}')
        try:
            path = self.root / text.format(**names)
        except (KeyError, IndexError, AttributeError, ValueError) as error:
            raise DataSetError(f'{self.root}: {INFO} names no file: {text}') from error
        return self.inside(path)
