"""Where the cube is, out of the recordings into the data set: columns that training can use.

Run it on what `data.export` made of the same files, in the same order:
`tools/env python examples/robosuite/objects.py lift.mcap SET`. Policies that know nothing of such
columns pass them over.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from record import TRUTH

from embodied_kv import storage
from embodied_kv.data import statistics
from embodied_kv.data.episodes import Cut, Episodes
from embodied_kv.data.lerobot_layout import INFO, STATS
from embodied_kv.data.recording_reader import Recording
from embodied_kv.data.signals import unbroken

Sizes = dict[str, tuple[int, int]]
NAME = TRUTH.rpartition('/')[2]
POSITION = f'complementary_info.position.{NAME}'  # m, in the arm's root frame
PIXEL = 'complementary_info.pixel.{view}.' + NAME  # column and row; NaN outside of the picture


def columns(recordings: Sequence[Path], sizes: Sizes) -> dict[str, np.ndarray]:
    """Of all frames that `data.export` writes, in its order. sizes: (height, width) by view.

    Raises ValueError where a recording does not know where the cube was.
    """
    names = {POSITION: TRUTH} | {PIXEL.format(view=v): f'{TRUTH}/{v}' for v in sizes}
    rows = [row for path in recordings for row in _rows(Recording(path), tuple(names.values()))]
    told = np.array(rows, np.float32).reshape(len(rows), len(names), 3)
    found = {key: told[:, i, : 3 if key == POSITION else 2] for i, key in enumerate(names)}
    for view, (height, width) in sizes.items():
        at = found[PIXEL.format(view=view)]
        outside = ((at < 0) | (at >= (width, height))).any(axis=1)
        at[outside] = np.nan
    return found


def _rows(recording: Recording, topics: tuple[str, ...]) -> Iterator[list[tuple[float, ...]]]:
    """Of each moment of an episode what each topic told then: x, y, z."""
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


def add(recordings: Sequence[Path], root: Path) -> int:
    """Adds the columns to a data set. Returns its frames. Raises ValueError, OSError."""
    info = json.loads((root / INFO).read_text())
    shapes = {
        key.removeprefix('observation.images.'): tuple(feature['shape'][:2])
        for key, feature in info['features'].items()
        if key.startswith('observation.images.')
    }
    if POSITION in info['features']:
        raise ValueError(f'{root} knows already where the cube is')
    found = columns(recordings, shapes)
    if len(found[POSITION]) != info['total_frames']:
        raise ValueError(
            f'{root} has {info["total_frames"]} frames, the recordings {len(found[POSITION])}: '
            'name those that it was made of, in their order'
        )
    for path in sorted((root / 'data').rglob('*.parquet')):
        _widen(path, found)
    stats = json.loads((root / STATS).read_text())
    for key, values in found.items():
        axes = ['x', 'y', 'z'] if key == POSITION else ['column', 'row']
        info['features'][key] = {'dtype': 'float32', 'shape': [len(axes)], 'names': axes}
        stats[key] = statistics.of_numbers(values[np.isfinite(values).all(axis=1)])
    for name, content in ((STATS, stats), (INFO, info)):
        with storage.replaced(root / name) as new:
            new.write_text(json.dumps(content, indent=1) + '\n')
    return info['total_frames']


def _widen(path: Path, found: dict[str, np.ndarray]) -> None:
    """A file of the data set with more columns; a row group is an episode, and stays one."""
    old, writer = pq.ParquetFile(path), None
    with storage.replaced(path) as new:
        for group in range(old.num_row_groups):
            table = old.read_row_group(group)
            frames = table['index'].to_numpy()
            for key, values in found.items():
                kind = pa.list_(pa.float32(), values.shape[1])
                flat = pa.array(values[frames].ravel())
                column = pa.FixedSizeListArray.from_arrays(flat, type=kind)
                table = table.append_column(key, column)
            writer = writer or pq.ParquetWriter(new, table.schema)
            writer.write_table(table)
        writer.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog='objects', description=__doc__.splitlines()[0])
    parser.add_argument('bag', type=Path, nargs='+', help='recordings of record.py')
    parser.add_argument('set', type=Path, help='the data set that was exported of them')
    told = parser.parse_args()
    try:
        print(f'{told.set}: where the cube is, in {add(told.bag, told.set)} frames')
    except (ValueError, OSError) as error:
        parser.exit(1, f'{error}\n')


if __name__ == '__main__':
    main()
