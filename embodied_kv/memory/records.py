"""The database of a memory: segments, and the units whose KV is stored.

Every change is one transaction with a rollback journal and full syncs: when `change` returns, it
is on the disk, and a crash before that leaves the earlier state. The journal holds the pages that
a change overwrites and is truncated after it, so a change that adds nothing needs little space (a
write-ahead log would grow). The record of a unit is deleted in the transaction that changes one of
its members, so a recorded unit is always up to date.

Each row of facts, segments and units has a checksum (CRC-32), which detects accidental damage.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embodied_kv.errors import ErrorCode
from embodied_kv.memory.files import FREE, DiskFullError, KvEntry, explained
from embodied_kv.memory.segment import MAX_ID, RobotMemoryError, Segment, Unit, check_id

FORMAT = 2  # 1 had no checksums
APPLICATION = 0x4B454550  # KEEP; also shown by `file`
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER) STRICT;
CREATE TABLE segments (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, text TEXT NOT NULL,
    version INTEGER NOT NULL, step INTEGER NOT NULL,
    cluster INTEGER, embedding BLOB, checksum INTEGER
) STRICT;
CREATE TABLE units (
    key TEXT PRIMARY KEY, lengths TEXT NOT NULL, file TEXT NOT NULL, checksum INTEGER
) STRICT;
CREATE TABLE members (
    unit TEXT NOT NULL REFERENCES units ON DELETE CASCADE,
    segment TEXT NOT NULL REFERENCES segments (id) ON DELETE CASCADE,
    PRIMARY KEY (segment, unit)
) STRICT;
CREATE INDEX by_unit ON members (unit);
"""
COLUMNS = 'place, checksum, id, kind, text, version, step'
NO_ROOM = 'disk is full', 'disk I/O error'  # the second where a quota is exhausted
CHECKED = {  # the columns of the checksum, by table
    'facts': 'name, value',
    'segments': 'id, kind, text, version, step',
    'units': 'key, lengths, file',
}


@dataclass(frozen=True, eq=False)
class SegmentRecord:
    """A stored segment with its group and embedding."""

    segment: Segment
    group: int | None
    embedding: np.ndarray | None


@dataclass(frozen=True)
class KeptUnit:
    """The stored KV of a unit, and the tokens of each of its segments, in order."""

    lengths: tuple[int, ...]
    file: KvEntry


class Records:
    """An open database. Raises RobotMemoryError if the file is not a memory or is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise RobotMemoryError(
                f'{path} must be a regular file; move it away', ErrorCode.UNAVAILABLE
            )
        with explained(path, 'opened'):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        with self._explained():
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    def _open(self) -> None:
        for pragma in (
            'trusted_schema = OFF',
            'cell_size_check = ON',
            'foreign_keys = ON',
            'temp_store = MEMORY',
            'synchronous = FULL',
        ):
            self._db.execute(f'PRAGMA {pragma}')
        self._db.text_factory = partial(str, encoding='utf-8', errors='replace')
        with suppress(sqlite3.OperationalError):  # no room to end an older write-ahead log
            self._db.execute('PRAGMA journal_mode = TRUNCATE')
        (application,) = self._db.execute('PRAGMA application_id').fetchone()
        (version,) = self._db.execute('PRAGMA user_version').fetchone()
        if not application and not self._db.execute('SELECT 1 FROM sqlite_master').fetchone():
            with self.change():
                for statement in SCHEMA.split(';'):
                    self._db.execute(statement)
                self._db.execute(f'PRAGMA application_id = {APPLICATION}')
                self._db.execute(f'PRAGMA user_version = {FORMAT}')
        elif application != APPLICATION:
            raise RobotMemoryError(
                f'{self.path} is not a memory; choose another folder', ErrorCode.MISMATCH
            )
        elif version not in (1, FORMAT):
            raise RobotMemoryError(
                f'format of {self.path} must be {FORMAT} (got {version})',
                ErrorCode.MISMATCH,
            )
        elif (found := self._db.execute('PRAGMA integrity_check(1)').fetchone()[0]) != 'ok':
            raise RobotMemoryError(
                f'{self.path} is damaged ({found}); restore a copy, or choose another folder',
                ErrorCode.DAMAGED,
            )
        elif version == 1:
            self._add_checksums()

    def _add_checksums(self) -> None:
        self._db.create_function('checksum', -1, checksum, deterministic=True)
        with self.change():
            for table, columns in CHECKED.items():
                self._db.execute(f'ALTER TABLE {table} ADD COLUMN checksum INTEGER')
                self._db.execute(f'UPDATE {table} SET checksum = checksum({columns})')
            self._db.execute(f'PRAGMA user_version = {FORMAT}')

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def change(self, grows: bool = True) -> Iterator[None]:
        """Run the block as one transaction.

        `grows` states whether the database may become larger. Raises DiskFullError without room.
        """
        with self._explained(), ExitStack() as undo:
            if not grows:
                (most,) = self._db.execute('PRAGMA max_page_count').fetchone()
                (now,) = self._db.execute('PRAGMA page_count').fetchone()
                self._db.execute(f'PRAGMA max_page_count = {now}')
                undo.callback(self._db.execute, f'PRAGMA max_page_count = {most}')
            self._db.execute('BEGIN IMMEDIATE')
            try:
                yield
                self._db.execute('COMMIT')
            except BaseException:
                self._db.rollback()
                raise

    def fact(self, name: str) -> str | None:
        row = self._one('SELECT value, checksum FROM facts WHERE name = ?', name)
        if row is None:
            return None
        if row[1] != checksum(name, row[0]):
            raise self._damaged(f'fact {name!r}')
        return row[0]

    def set_fact(self, name: str, value: str) -> None:
        row = name, value, checksum(name, value)
        self._db.execute('INSERT OR REPLACE INTO facts VALUES (?, ?, ?)', row)

    def segment(self, id: str) -> Segment | None:
        check_id(id)
        row = self._one(f'SELECT {COLUMNS} FROM segments WHERE id = ?', id)
        return None if row is None else self._segment(*row)

    def segment_records(self) -> Iterator[SegmentRecord]:
        """Iterate over all segments in order of arrival."""
        with self._explained():
            query = f'SELECT {COLUMNS}, cluster, embedding FROM segments ORDER BY place'
            for row in self._db.execute(query):
                *fields, group, blob = row
                segment = self._segment(*fields)
                if not isinstance(group, int | None) or not isinstance(blob, bytes | None):
                    raise self._damaged(f'segment {segment.id!r}')
                embedding = None
                if blob is not None and len(blob) % 4 == 0:
                    embedding = np.frombuffer(blob, np.float32).copy()
                yield SegmentRecord(segment, group, embedding)

    def _segment(
        self, place: int, found: int, id: str, kind: str, text: str, version: int, step: int
    ) -> Segment:
        if found != checksum(id, kind, text, version, step):
            delete = f'sqlite3 {self.path} "DELETE FROM segments WHERE place = {place}"'
            raise self._damaged(f'segment {str(id)[:MAX_ID]!r}', f', or delete it with: {delete}')
        return Segment(id, kind, text, version, step)

    def _damaged(self, what: str, remedy: str = '') -> RobotMemoryError:
        return RobotMemoryError(
            f'{what} in {self.path} is damaged (checksum); restore a copy of this folder, or '
            f'choose another{remedy}',
            ErrorCode.DAMAGED,
        )

    def write(self, segment: Segment, embedding: np.ndarray | None) -> None:
        """Add a segment, or change it without changing its order and group."""
        blob = None if embedding is None else np.float32(embedding).tobytes()
        fields = (segment.kind, segment.text, segment.version, segment.step)
        values = (*fields, blob, checksum(segment.id, *fields))
        self._db.execute(
            'INSERT INTO segments (id, kind, text, version, step, embedding, checksum) '
            'VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET '
            '(kind, text, version, step, embedding, checksum) = (?, ?, ?, ?, ?, ?)',
            (segment.id, *values, *values),
        )

    def delete(self, id: str) -> None:
        self._db.execute('DELETE FROM segments WHERE id = ?', (id,))

    def set_groups(self, groups: Mapping[str, int]) -> None:
        rows = [(group, id) for id, group in groups.items()]
        self._db.executemany('UPDATE segments SET cluster = ? WHERE id = ?', rows)

    def embed(self, embeddings: Mapping[str, np.ndarray]) -> None:
        rows = [(np.float32(e).tobytes(), id) for id, e in embeddings.items()]
        self._db.executemany('UPDATE segments SET embedding = ? WHERE id = ?', rows)

    def units(self) -> Iterator[tuple[str, KeptUnit]]:
        """Iterate over the keys and records of all stored KV."""
        with self._explained():
            query = 'SELECT checksum, key, lengths, file FROM units'
            for found, key, lengths, file in self._db.execute(query):
                try:
                    if found != checksum(key, lengths, file):
                        raise ValueError('checksum')
                    yield key, KeptUnit(tuple(json.loads(lengths)), _entry(file))
                except (ValueError, TypeError, AttributeError, RecursionError) as error:
                    raise RobotMemoryError(
                        f'{self.path} is damaged (unit {str(key)[:40]}: {error}); choose another '
                        'folder',
                        ErrorCode.DAMAGED,
                    ) from error

    def units_of(self, id: str) -> list[str]:
        rows = self._db.execute('SELECT unit FROM members WHERE segment = ?', (id,))
        return [key for (key,) in rows]

    def write_unit(self, unit: Unit, kept: KeptUnit) -> bool:
        """Write or replace a record; return False, writing nothing, if a member has changed."""
        if any(self.segment(s.id) != s for s in unit.segments):
            return False
        key = unit.key
        self.delete_units([key])
        values = (key, json.dumps(kept.lengths), json.dumps(asdict(kept.file)))
        row = *values, checksum(*values)
        self._db.execute('INSERT INTO units VALUES (?, ?, ?, ?)', row)
        members = [(key, id) for id in unit.ids]
        self._db.executemany('INSERT INTO members VALUES (?, ?)', members)
        return True

    def delete_units(self, keys: Sequence[str]) -> None:
        self._db.executemany('DELETE FROM units WHERE key = ?', [(key,) for key in keys])

    def _one(self, query: str, *values: object) -> tuple | None:
        with self._explained():
            return self._db.execute(query, values).fetchone()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            full = any(text in str(error) for text in NO_ROOM)
            remedy = FREE if full else 'check the disk, or choose another folder'
            problem = f'{self.path} cannot be used: {error}; {remedy}'
            code = ErrorCode.NO_ROOM if full else ErrorCode.UNAVAILABLE
            raise (DiskFullError if full else RobotMemoryError)(problem, code) from error


def checksum(*values: object) -> int:
    """Return the CRC-32 of the values of a row."""
    return zlib.crc32('\0'.join(map(str, values)).encode(errors='replace'))


def _entry(text: str) -> KvEntry:
    read = json.loads(text).items()
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in read}
    return KvEntry(**fields)
