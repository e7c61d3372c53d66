"""Write episodes to a data set of LeRobot's layout, version 2.1, which openpi reads.

Version 2.1 has one data file for each episode, and lines of JSON where version 3.0 has tables in
meta/. Its statistics have no quantiles. Source: LeRobot 0.3.3, `lerobot/datasets`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from embodied_kv.data.lerobot_layout import FILES, INFO, PICTURE, VERSION
from embodied_kv.data.lerobot_writer import LeRobotWriter
from embodied_kv.data.statistics import Stats

VERSION_21 = 'v2.1'
DATA = 'data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet'
EPISODES, EPISODES_STATS = 'meta/episodes.jsonl', 'meta/episodes_stats.jsonl'
WORDS = 'meta/{kind}s.jsonl'  # of tasks and subtasks
ONLY_30 = 'data_files_size_in_mb', 'video_files_size_in_mb'  # fields of info.json
KEPT = 'min', 'max', 'mean', 'std', 'count'  # statistics


class LeRobotV21Writer(LeRobotWriter):
    """A new data set of version 2.1 in an empty or new folder. Raises ValueError, OSError."""

    def _data(self, file: int) -> Path:
        return self.root / DATA.format(episode_chunk=file // FILES, episode_index=file)

    def _is_full(self) -> bool:
        return True

    def _schema(self) -> pa.Schema:
        """Return the schema with the types that `datasets` needs to recognise images."""
        kinds = super()._schema()
        images = {field.name: {'_type': 'Image'} for field in kinds if field.type == PICTURE}
        return kinds.with_metadata({'huggingface': json.dumps({'info': {'features': images}})})

    def _write_meta(self, total: dict[str, Stats]) -> None:
        rows = [
            {name: episode[name] for name in ('episode_index', 'tasks', 'length')}
            for episode in self._episodes
        ]
        self._dump_lines(EPISODES, rows)
        self._dump_lines(
            EPISODES_STATS,
            (
                {
                    'episode_index': index,
                    'stats': {key: _kept(found) for key, found in stats.items() if found},
                }
                for index, stats in enumerate(self._stats)
            ),
        )
        for kind, words in (('task', self._tasks), ('subtask', self._subtasks)):
            rows = [{f'{kind}_index': index, kind: text} for text, index in words.items()]
            if rows:
                self._dump_lines(WORDS.format(kind=kind), rows)
        info = {key: value for key, value in self._info.items() if key not in ONLY_30}
        chunks = -(-self.episodes // FILES)
        info |= {'codebase_version': VERSION_21, 'data_path': DATA}
        self._dump(INFO, info | {'total_chunks': chunks, 'total_videos': 0})

    def _dump_lines(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open('w', encoding='utf-8') as file:
            file.writelines(json.dumps(row, allow_nan=False) + '\n' for row in rows)


WRITERS = {VERSION: LeRobotWriter, VERSION_21: LeRobotV21Writer}  # by version


def _kept(stats: Stats) -> Stats:
    return {name: stats[name] for name in KEPT}
