"""Copy the position of the cube from recordings into a data set, as columns for training.

The data set must be what `data.export` wrote for the same recordings, in the same order. Policies
that do not know such columns ignore them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embodied_kv import storage
from embodied_kv.data import statistics
from embodied_kv.data.episodes import Cut, Episodes
from embodied_kv.data.lerobot_layout import (
    IMAGES,
    INFO,
    STATS,
    features,
    pixel_key,
    position_key,
)
from embodied_kv.data.recording_reader import Recording
from embodied_kv.data.signals import unbroken
from embodied_kv.robots.embodiment import Embodiment

from recording import TRUTH

Sizes = dict[str, tuple[int, int]]
NAME = TRUTH.rpartition('/')[2]
POSITION = position_key(NAME)


def columns(recordings: Sequence[Path], sizes: Sizes) -> dict[str, np.ndarray]:
    """Return the columns of all frames that `data.export` writes, in its order.

    sizes: (height, width) by view. Raises ValueError if a recording has no position of the cube.
    """
    names = {POSITION: TRUTH} | {pixel_key(v, NAME): f'{TRUTH}/{v}' for v in sizes}
    rows = [row for path in recordings for row in _rows(Recording(path), tuple(names.values()))]
    told = np.array(rows, np.float32).reshape(len(rows), len(names), 3)
    found = {key: told[:, i, : 3 if key == POSITION else 2] for i, key in enumerate(names)}
    for view, (height, width) in sizes.items():
        at = found[pixel_key(view, NAME)]
        outside = ((at < 0) | (at >= (width, height))).any(axis=1)
        at[outside] = np.nan
    return found


def _rows(recording: Recording, topics: tuple[str, ...]) -> Iterator[list[tuple[float, ...]]]:
    """Yield, for each moment of an episode, the x, y, z that each topic has then."""
    told: dict[tuple[str, int], tuple[float, ...]] = {}
    for message in recording.messages():
        if message.topic in topics:
            point = message.read().point
            told[message.topic, message.stamp] = point.x, point.y, point.z
    for signals in unbroken(recording):
        for moments in Episodes(signals, Cut()).found:
            for moment in moments:
                try:
                    yield [told[topic, moment.stamp] for topic in topics]
                except KeyError as error:
                    raise ValueError(
                        f'{recording.path} does not say where the cube was: record it anew'
                    ) from error


def add(robot: Embodiment, recordings: Sequence[Path], root: Path) -> int:
    """Add the columns to a data set, atomically, and return its number of frames.

    Raises ValueError, OSError.
    """
    info = json.loads((root / INFO).read_text())
    if POSITION in info['features']:
        raise ValueError(f'{root} knows already where the cube is')
    shapes = {
        key.removeprefix(IMAGES): tuple(feature['shape'][:2])
        for key, feature in info['features'].items()
        if key.startswith(IMAGES)
    }
    found = columns(recordings, shapes)
    if len(found[POSITION]) != info['total_frames']:
        raise ValueError(
            f'{root} has {info["total_frames"]} frames, the recordings {len(found[POSITION])}: '
            'name those that it was made of, in their order'
        )
    described = features(robot, {}, found)
    stats = json.loads((root / STATS).read_text())
    info['features'] |= {key: described[key] for key in found}
    stats |= {key: statistics.of_numbers(values) for key, values in found.items()}
    with storage.replaced_folder(root.resolve()) as new:
        shutil.copytree(root, new, dirs_exist_ok=True)
        for path in (root / 'data').rglob('*.parquet'):
            _widen(path, new / path.relative_to(root), found)
        for name, content in ((STATS, stats), (INFO, info)):
            (new / name).write_text(json.dumps(content, indent=1, allow_nan=False) + '\n')
        for path in new.rglob('*'):
            storage.sync(path)
    return info['total_frames']


def _widen(path: Path, new: Path, found: dict[str, np.ndarray]) -> None:
    """Write a file of the data set with more columns; each row group remains one episode."""
    old, writer = pq.ParquetFile(path), None
    for group in range(old.num_row_groups):
        table = old.read_row_group(group)
        frames = table['index'].to_numpy()
        for key, values in found.items():
            kind = pa.list_(pa.float32(), values.shape[1])
            flat = pa.array(values[frames].ravel())
            table = table.append_column(key, pa.FixedSizeListArray.from_arrays(flat, type=kind))
        writer = writer or pq.ParquetWriter(new, table.schema)
        writer.write_table(table)
    writer.close()


def run(robot: Embodiment, description: str) -> None:
    """Parse the command line and add the columns."""
    parser = argparse.ArgumentParser(prog='objects', description=description)
    parser.add_argument('bag', type=Path, nargs='+', help='recordings of record.py')
    parser.add_argument('set', type=Path, help='the data set that was exported of them')
    told = parser.parse_args()
    try:
        print(f'{told.set}: where the cube is, in {add(robot, told.bag, told.set)} frames')
    except (ValueError, OSError) as error:
        parser.exit(1, f'{error}\n')
