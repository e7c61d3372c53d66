"""`python -m training.policy.export`: the tabletop's episodes as a LeRobot v3 data set.

An episode of the data set is one task of a tabletop episode. It has the positions of the things,
in metres and in pixels, so that training by contract can be tried without a robot.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from embodied_kv import storage
from embodied_kv.data.lerobot_writer import Frames, LeRobotWriter
from embodied_kv.demo.sim.scene import CAMERAS
from embodied_kv.robots.embodiment import Embodiment
from training.common import command
from training.policy.dataset import on_the_table
from training.policy.episodes import (
    COLOUR_NAMES,
    SHAPE_NAMES,
    Episode,
    find_episodes,
    read_episode,
)

NAMES = tuple(f'{colour} {shape}' for colour in COLOUR_NAMES for shape in SHAPE_NAMES)
LEAST = 10  # frames of a task, at least


def tasks_of(episode: Episode) -> Iterator[Frames]:
    """Yield each task that has at least LEAST frames, with its frames."""
    frames, things = episode.frames, on_the_table(episode.frames['truth.things'][..., :3])
    kinds = zip(episode.colours, episode.shapes, strict=True)
    slots = {f'{COLOUR_NAMES[c]} {SHAPE_NAMES[s]}': n for n, (c, s) in enumerate(kinds) if c >= 0}
    for number, task in enumerate(episode.tasks):
        here = np.flatnonzero(frames['task_index'] == number)
        if len(here) < LEAST:
            continue
        spots = frames['truth.pixels'][here]  # [T, N, views, 2]
        yield Frames(
            task=task.phrase(number),
            state=frames['observation.state'][here],
            action=frames['action'][here],
            interventions=np.zeros(len(here), bool),
            images={
                camera: [_png(picture) for picture in frames[f'observation.images.{camera}'][here]]
                for camera in CAMERAS
            },
            positions={name: _of(things[here], slots.get(name)) for name in NAMES},
            pixels={
                (camera, name): _of(spots[:, :, view], slots.get(name))
                for view, camera in enumerate(CAMERAS)
                for name in NAMES
            },
        )


def _of(values: np.ndarray, slot: int | None) -> np.ndarray:
    """Return [T, dims] of the thing in a slot of [T, N, dims]; NaN if it is not in the scene."""
    return np.full_like(values[:, 0], np.nan) if slot is None else values[:, slot]


def _png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, 'PNG', compress_level=1)
    return stream.getvalue()


def main() -> None:
    """Parse the command line and export."""
    parser = command.parser('policy.export', __doc__)
    parser.add_argument('--data', type=Path, default=Path('out/train/data'), help='dataset folder')
    parser.add_argument('out', type=Path, help='a new folder')
    arguments = parser.parse_args()
    try:
        paths = find_episodes(arguments.data)
        if arguments.out.exists() and any(arguments.out.iterdir()):
            raise ValueError(f'{arguments.out} is not empty: name a new folder')
        with storage.new_folder(arguments.out) as folder:
            writer = LeRobotWriter(folder, Embodiment.load('tabletop'))
            for path in paths:
                for frames in tasks_of(read_episode(path)):
                    writer.add(frames)
            writer.finish()
    except (ValueError, OSError) as error:
        parser.exit(2, f'{parser.prog}: {error}\n')
    print(f'{arguments.out}: {writer.episodes} episodes, {writer.frames} frames')


if __name__ == '__main__':
    main()
