"""Whether a LeRobot data set is what a robot's contract says: each refusal has a name.

Knows info, numbers and the contract. Does not know files. Messages name the data set's side and
the robot's, and say what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embodied_kv.data.lerobot_layout import ACTION, INFO, PIXEL, POSITION, STATE, image_key
from embodied_kv.robots.embodiment import Embodiment

DRIFT = 1e-3  # s that a timestamp may lie from its period


class DataSetError(ValueError):
    """A data set that cannot be used: what is wrong, and what to do."""


def check_info(info: Mapping[str, Any], robot: Embodiment) -> None:
    """Rate, views, dimensions and their order. Raises DataSetError."""
    contract, described = robot.contract, info['features']
    if info['fps'] != contract.fps:
        raise DataSetError(
            f'fps: {info["fps"]} of the data set, but {contract.fps:g} of {contract.robot_type}: '
            'give a contract of that fps, or resample the data set'
        )
    views = [key for key, f in described.items() if f['dtype'] in ('image', 'video')]
    if missing := [v for v in contract.views if image_key(v) not in views]:
        raise DataSetError(
            f'views: {contract.robot_type} has {", ".join(missing)}, the data set has '
            f'{", ".join(views) or "none"}: rename its columns or the views of the contract'
        )
    for key, dimensions, sources in (
        (STATE, robot.state.dimensions, contract.state),
        (ACTION, robot.actions.dimensions, contract.action),
    ):
        if key not in described:
            raise DataSetError(f'{key} is missing: the data set has {", ".join(described)}')
        shape = list(described[key]['shape'])
        if shape != [len(dimensions)]:
            raise DataSetError(
                f'{key}: {shape} numbers of the data set, but {len(dimensions)} of '
                f'{contract.robot_type}: give the contract that it was recorded with'
            )
        _check_names(key, described[key].get('names'), dimensions, bool(sources[0].names))
    for key, feature in described.items():
        size = 3 if key.startswith(POSITION) else 2 if key.startswith(PIXEL) else None
        if size and (feature['dtype'], list(feature['shape'])) != ('float32', [size]):
            raise DataSetError(
                f'{key}: {feature["dtype"]} {list(feature["shape"])} in the data set, where an '
                f'object is takes float32 [{size}]'
            )


def _check_names(key: str, told: Any, dimensions: tuple, declared: bool) -> None:
    """LeRobot keeps a list of names, or one under a word such as motors."""
    if isinstance(told, Mapping):
        told = next((names for names in told.values() if isinstance(names, list)), None)
    ours = [dimension.name for dimension in dimensions]
    if not told or told == ours:
        return
    if declared or sorted(told) == sorted(ours):
        raise DataSetError(
            f'{key}: the data set names {", ".join(told)}, the contract {", ".join(ours)}: both '
            'must be the same, in the same order'
        )


def check_totals(info: Mapping[str, Any], lengths: Sequence[int]) -> None:
    """Raises DataSetError where info counts other episodes or frames than there are."""
    for name, there in (('total_episodes', len(lengths)), ('total_frames', sum(lengths))):
        if info.get(name, there) != there:
            raise DataSetError(
                f'{name}: {info[name]} in {INFO}, but {there} in meta/episodes: a file is missing '
                'or the data set was not finished'
            )


def check_names(there: Sequence[str], needed: Sequence[str], where: str) -> None:
    """Raises DataSetError where a column is missing."""
    if missing := [name for name in needed if name not in there]:
        raise DataSetError(
            f'{where} has no {", ".join(missing)}: write it with LeRobot 0.4 or later'
        )


def check_columns(table: pa.Table, needed: Sequence[str], where: str) -> None:
    """Raises DataSetError where one is missing or, but for state and action, has empty values."""
    check_names(table.column_names, needed, where)
    for name in needed:
        if table[name].null_count and name not in (STATE, ACTION):
            raise DataSetError(f'{where}: {name} is empty in {table[name].null_count} rows')


def numbers(
    column: pa.ChunkedArray, key: str, size: int, where: str, holes: bool = False
) -> np.ndarray:
    """float32 [frames, size]. Raises DataSetError for rows of several lengths, and infinity.

    holes: rows may be NaN, where nothing is known; else that is refused too.
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
    """Raises DataSetError where an episode has gaps, or another length than meta/ says."""
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
