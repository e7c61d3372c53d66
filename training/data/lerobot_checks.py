"""Check the numbers, times and counts of a LeRobot data set against a robot's contract.

This module does not read files. Each error names the data set's value, the requirement and the
remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embodied_kv.data.lerobot_layout import INFO, PIXEL, POSITION
from embodied_kv.robots.embodiment import Embodiment

DRIFT = 1e-3  # s, largest deviation of a timestamp


class DataSetError(ValueError):
    """A data set cannot be used; the message has the reason and the remedy."""


def check_info(info: Mapping[str, Any], robot: Embodiment) -> None:
    """Check the frame rate, and the columns of objects. Raises DataSetError."""
    contract, described = robot.contract, info['features']
    if info['fps'] != contract.fps:
        raise DataSetError(
            f'fps of the data set must be that of {contract.robot_type}, {contract.fps:g} (got '
            f'{info["fps"]}); give a contract of that fps, or resample the data set'
        )
    for key, feature in described.items():
        size = 3 if key.startswith(POSITION) else 2 if key.startswith(PIXEL) else None
        if size and (feature['dtype'], list(feature['shape'])) != ('float32', [size]):
            raise DataSetError(
                f'{key} must be float32 [{size}], where an object is (got {feature["dtype"]} '
                f'{list(feature["shape"])}); write the column again'
            )


def check_totals(info: Mapping[str, Any], lengths: Sequence[int]) -> None:
    """Raise DataSetError if info counts other episodes or frames than there are."""
    for name, there in (('total_episodes', len(lengths)), ('total_frames', sum(lengths))):
        if info.get(name, there) != there:
            raise DataSetError(
                f'{name}: {info[name]} in {INFO}, but {there} in meta/episodes: a file is missing '
                'or the data set was not finished'
            )


def check_names(there: Sequence[str], needed: Sequence[str], where: str) -> None:
    """Raise DataSetError if a column is missing."""
    if missing := [name for name in needed if name not in there]:
        raise DataSetError(
            f'{where} has no {", ".join(missing)}: write it with LeRobot 0.4 or later'
        )


def check_columns(
    table: pa.Table, needed: Sequence[str], where: str, vectors: Sequence[str] = ()
) -> None:
    """Check that columns are there and have no empty values. Raises DataSetError.

    vectors: columns whose empty values `numbers` reports, with the number of frames.
    """
    check_names(table.column_names, needed, where)
    for name in needed:
        if table[name].null_count and name not in vectors:
            raise DataSetError(f'{where}: {name} is empty in {table[name].null_count} rows')


def numbers(
    column: pa.ChunkedArray, key: str, size: int, where: str, holes: bool = False
) -> np.ndarray:
    """Return float32 [frames, size]. Raises DataSetError for unequal rows, and infinity.

    holes: rows may be NaN, where the value is unknown; otherwise NaN is an error, too.
    """
    if column.null_count:
        raise DataSetError(f'{where}: {key} is empty in {column.null_count} frames: remove those')
    array = column.combine_chunks()
    if pa.types.is_nested(array.type):
        lengths = {len(row) for row in array}
        if lengths != {size}:
            raise DataSetError(
                f'{where}: {key} has rows of {sorted(lengths)} numbers, not of {size}'
            )
        array = array.flatten()
    values = np.asarray(array, np.float32).reshape(len(column), size)
    if len(bad := np.argwhere(np.isinf(values) if holes else ~np.isfinite(values))):
        frame, place = bad[0]
        raise DataSetError(
            f'{where}: {key}[{place}] of frame {frame} is {values[frame, place]}: remove the '
            'episode, or mend it'
        )
    return values


def check_frames(table: pa.Table, length: int, fps: float, where: str) -> None:
    """Raise DataSetError if an episode has gaps, or another length than in meta/."""
    if len(table) != length:
        raise DataSetError(
            f'{where}: {len(table)} frames in data/, but {length} in meta/: it is ragged; write '
            'the data set again'
        )
    index = np.asarray(table['frame_index'].combine_chunks())
    if not np.array_equal(index, np.arange(length)):
        raise DataSetError(f'{where}: frame_index does not count from 0 to {length - 1}')
    stamps = np.asarray(table['timestamp'].combine_chunks(), np.float64)
    drift = np.abs(stamps - index / fps)
    if drift.max(initial=0) > DRIFT:
        frame = int(drift.argmax())
        raise DataSetError(
            f'{where}: frame {frame} is at {stamps[frame]:.3f} s, not at {frame / fps:.3f}: its '
            f'frames are not {fps:g} a second'
        )
