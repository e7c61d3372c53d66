"""The cache in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KvStats:
    """What the cache holds now, and what was done since the start."""

    rows: int
    rows_free: int
    rows_reserved: int
    leases: int
    streams: int
    streams_max: int
    language_rows_max: int
    bytes: int
    bytes_used: int
    compressed: int
    bytes_saved: int
    prefills: int
    evictions: int
    scoring_failures: int
