"""The records of a memory: segments, and which KV was computed from which of them.

Knows SQL. Does not know what is in a file of KV.

Every change is one transaction in WAL mode with full syncs: when `change` returns, it is on the
medium, and a crash before that leaves what was there. A unit's record goes with the first of its
members that changes, by the same transaction, so whatever has a record is up to date.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from embodied_kv.memory.files import KvEntry
from embodied_kv.memory.segment import MemoryFault, Segment, check_id
from embodied_kv.memory.unit import Unit

FORMAT = 1
APPLICATION = 0x4B454550  # KEEP, for `file` and for us
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE segments (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, text TEXT NOT NULL,
    version INTEGER NOT NULL, step INTEGER NOT NULL,
    cluster INTEGER, embedding BLOB
) STRICT;
CREATE INDEX by_kind ON segments (kind, place);
CREATE TABLE units (key TEXT PRIMARY KEY, lengths TEXT NOT NULL, file TEXT NOT NULL) STRICT;
CREATE TABLE members (
    unit TEXT NOT NULL REFERENCES units ON DELETE CASCADE,
    segment TEXT NOT NULL REFERENCES segments (id) ON DELETE CASCADE,
    PRIMARY KEY (segment, unit)
) STRICT;
CREATE INDEX by_unit ON members (unit);
"""
COLUMNS = 'id, kind, text, version, step'
RECORD_COLUMNS = f'{COLUMNS}, cluster, embedding'


@dataclass(frozen=True, eq=False)
class SegmentDraft:
    """What is to be remembered. embedding: float32 [width], the meaning of the text."""

    id: str
    kind: str
    text: str
    embedding: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class SegmentRecord:
    """A segment and what is known of it. group: None before it has one."""

    segment: Segment
    group: int | None
    embedding: np.ndarray | None


@dataclass(frozen=True)
class KeptUnit:
    """The KV of a unit. lengths: tokens of each of its segments, in order."""

    lengths: tuple[int, ...]
    file: KvEntry


class Records:
    """One database. Raises MemoryFault for what is no memory, or is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_symlink() or path.exists() and not path.is_file():
            raise MemoryFault(f'{path} is no regular file: move it away')
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
            'journal_mode = WAL',
            'synchronous = FULL',
        ):
            self._db.execute(f'PRAGMA {pragma}')
        (application,) = self._db.execute('PRAGMA application_id').fetchone()
        (version,) = self._db.execute('PRAGMA user_version').fetchone()
        if not application and not self._db.execute('SELECT 1 FROM sqlite_master').fetchone():
            with self.change():
                for statement in SCHEMA.split(';'):
                    self._db.execute(statement)
                self._db.execute(f'PRAGMA application_id = {APPLICATION}')
                self._db.execute(f'PRAGMA user_version = {FORMAT}')
        elif application != APPLICATION:
            raise MemoryFault(f'{self.path} is no memory: choose another folder')
        elif version != FORMAT:
            raise MemoryFault(f'{self.path} has format {version}, this version reads {FORMAT}')
        elif (found := self._db.execute('PRAGMA quick_check(1)').fetchone()[0]) != 'ok':
            raise MemoryFault(f'{self.path} is damaged ({found}): restore it, or start anew')

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def change(self) -> Iterator[None]:
        """All that is done inside, or nothing of it."""
        with self._explained():
            self._db.execute('BEGIN IMMEDIATE')
            try:
                yield
                self._db.execute('COMMIT')
            except BaseException:
                self._db.rollback()
                raise

    def fact(self, name: str) -> str | None:
        row = self._one('SELECT value FROM facts WHERE name = ?', name)
        return row and row[0]

    def set_fact(self, name: str, value: str) -> None:
        self._db.execute('INSERT OR REPLACE INTO facts VALUES (?, ?)', (name, value))

    def segment(self, id: str) -> Segment | None:
        check_id(id)
        row = self._one(f'SELECT {COLUMNS} FROM segments WHERE id = ?', id)
        return row and Segment(*row)

    def segments(self, kind: str | None = None) -> tuple[Segment, ...]:
        """In the order in which they came."""
        where, values = ('', ()) if kind is None else ('WHERE kind = ?', (kind,))
        query = f'SELECT {COLUMNS} FROM segments {where} ORDER BY place'
        with self._explained():
            return tuple(Segment(*row) for row in self._db.execute(query, values))

    def segment_records(self) -> Iterator[SegmentRecord]:
        """All segments, in the order in which they came."""
        with self._explained():
            for row in self._db.execute(f'SELECT {RECORD_COLUMNS} FROM segments ORDER BY place'):
                *fields, group, blob = row
                embedding = None if blob is None else np.frombuffer(blob, np.float32).copy()
                yield SegmentRecord(Segment(*fields), group, embedding)

    def count(self) -> int:
        return self._one('SELECT count(*) FROM segments')[0]

    def write(self, segment: Segment, draft: SegmentDraft) -> None:
        """Keeps order and group of one that is there."""
        blob = None
        if draft.embedding is not None:
            blob = np.ascontiguousarray(draft.embedding, np.float32).tobytes()
        values = (segment.kind, segment.text, segment.version, segment.step, blob)
        self._db.execute(
            'INSERT INTO segments (id, kind, text, version, step, embedding) '
            'VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET '
            '(kind, text, version, step, embedding) = (?, ?, ?, ?, ?)',
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
        """Of all KV that there is: its key, and what it is."""
        with self._explained():
            for key, lengths, file in self._db.execute('SELECT key, lengths, file FROM units'):
                try:
                    yield key, KeptUnit(tuple(json.loads(lengths)), _entry(file))
                except (ValueError, TypeError, AttributeError, RecursionError) as error:
                    raise MemoryFault(
                        f'{self.path} is damaged (unit {key[:40]}: {error}): start anew'
                    ) from error

    def units_of(self, id: str) -> list[str]:
        rows = self._db.execute('SELECT unit FROM members WHERE segment = ?', (id,))
        return [key for (key,) in rows]

    def write_unit(self, unit: Unit, kept: KeptUnit) -> bool:
        """In place of an older one. False, and nothing is written, if a member is not current."""
        if any(self.segment(s.id) != s for s in unit.segments):
            return False
        key = unit.key
        self.delete_units([key])
        values = (key, json.dumps(kept.lengths), json.dumps(asdict(kept.file)))
        self._db.execute('INSERT INTO units VALUES (?, ?, ?)', values)
        members = [(key, id) for id in unit.ids]
        self._db.executemany('INSERT INTO members VALUES (?, ?)', members)
        return True

    def delete_units(self, keys: list[str]) -> None:
        self._db.executemany('DELETE FROM units WHERE key = ?', [(key,) for key in keys])

    def _one(self, query: str, *values: object) -> tuple | None:
        with self._explained():
            return self._db.execute(query, values).fetchone()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise MemoryFault(
                f'{self.path} cannot be used: {error}; look at this disk, or start '
                'anew in another folder'
            ) from error


def _entry(text: str) -> KvEntry:
    fields = json.loads(text)
    return KvEntry(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})
