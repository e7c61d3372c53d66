"""Episodes on disk, in LeRobot's layout: meta/*.json(l), data/chunk-NNN/episode_NNNNNN.npz.

This module knows files and arrays, not how episodes are made or used. Arrays have LeRobot's names;
those with further knowledge of the simulator begin with `truth.`. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from embodied_kv.demo.sim.scene import CAMERAS, COLOURS, SIZES
from embodied_kv.demo.sim.tabletop import ObjectTruth, Truth
from embodied_kv.demo.sim.tasks import Task

CHUNK = 1000  # episodes in a folder
MOST_THINGS = 6  # objects and receptacles
AHEAD = 10  # actions of a plan
COVERED = 'truth.covers'  # an array of episodes with covers only
NONE = np.zeros((0, 2))  # covers
COLOUR_NAMES, SHAPE_NAMES = tuple(COLOURS), tuple(SIZES)

IMAGES = tuple(f'observation.images.{camera}' for camera in CAMERAS)


def features(size: int) -> dict[str, tuple[int, ...]]:
    """Return the arrays of a frame with their shapes; images have `size` x `size` pixels."""
    return {
        **dict.fromkeys(IMAGES, (size, size, 3)),  # uint8
        'observation.state': (7,),  # float32, rad and m
        'action': (7,),  # float32, the expert's next joint targets, rad and m
        'timestamp': (),  # float32, s since the episode began
        'task_index': (),  # int64, in the episode's own list of tasks
        'truth.things': (MOST_THINGS, 4),  # float32, x, y, z in m and yaw in rad, NaN for none
        'truth.pixels': (MOST_THINGS, len(CAMERAS), 2),  # float32, (column, row) of each thing
        'truth.held': (),  # int64, index of a thing, -1 for none
        # float32, rad and m: leftover actions; action i is due i periods after the frame, NaN
        # beyond the plan
        'truth.leftover': (AHEAD, 7),
    }


FEATURES = tuple(features(0))  # names


@dataclass(frozen=True, eq=False)
class Episode:
    """An episode. frames: an array [T, ...] for each of `features`. tasks: in order of time.

    colours, shapes: int64 [MOST_THINGS], indices in COLOUR_NAMES and SHAPE_NAMES, -1 for none.
    covers: float32 [T, COVERS, 2] m, NaN for those out of sight; None in a scene without covers.
    """

    frames: dict[str, np.ndarray]
    tasks: tuple[Task, ...]
    colours: np.ndarray
    shapes: np.ndarray
    covers: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.frames['timestamp'])

    @property
    def size(self) -> int:
        """Pixels of an image's side."""
        return max(self.frames[IMAGES[0]].shape[1:3], default=0)

    def covers_at(self, frame: int) -> np.ndarray:
        """Return the covers on the table, float64 [C, 2] m."""
        covers = np.zeros((0, 2)) if self.covers is None else self.covers[frame]
        return covers[~np.isnan(covers[:, 0])].astype(np.float64)


def episode_path(root: Path, index: int) -> Path:
    """Return the path of an episode."""
    return root / 'data' / f'chunk-{index // CHUNK:03d}' / f'episode_{index:06d}.npz'


def write_episode(root: Path, index: int, episode: Episode) -> None:
    """Write an episode atomically: under a temporary name, then renamed."""
    path = episode_path(root, index)
    path.parent.mkdir(parents=True, exist_ok=True)
    covers = {} if episode.covers is None else {COVERED: episode.covers}
    temporary = path.with_suffix(f'.{os.getpid()}.tmp')
    with temporary.open('wb') as stream:
        np.savez(
            stream,
            **episode.frames,
            **{'truth.colours': episode.colours, 'truth.shapes': episode.shapes},
            **covers,
            tasks=np.array([_written(task) for task in episode.tasks]),
        )
    temporary.replace(path)


def read_episode(path: Path) -> Episode:
    """Read an episode. Raises ValueError that names the file if it has another layout."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            frames = {name: arrays[name] for name in FEATURES}
            tasks = tuple(_read(str(text)) for text in arrays['tasks'])
            kinds = arrays['truth.colours'], arrays['truth.shapes']
            covers = arrays.get(COVERED)
            episode = Episode(frames, tasks, *kinds, covers)
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise _not_an_episode(path, error) from error
    for name, shape in features(episode.size).items():
        if frames[name].shape != (len(episode), *shape):
            raise ValueError(f'{path}: {name} is {frames[name].shape}, expected [T, *{shape}]')
    return episode


def _written(task: Task) -> str:
    return json.dumps({name: value for name, value in asdict(task).items() if value is not None})


def _read(text: str) -> Task:
    values = json.loads(text)
    spot = values.pop('spot', None)
    return Task(**values, spot=spot and tuple(spot))


def count_frames(path: Path) -> int:
    """Return the number of frames of an episode, without reading its images.

    Raises ValueError as `read_episode` does.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return len(arrays['timestamp'])
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise _not_an_episode(path, error) from error


def find_episodes(root: Path) -> list[Path]:
    """Return the episodes of a dataset, in order. Raises ValueError if there are none."""
    found = sorted(root.glob('data/chunk-*/episode_*.npz'))
    if not found:
        raise ValueError(f'{root} has no episodes: run python -m training.policy.generate')
    return found


def true_state(
    colours: np.ndarray,
    shapes: np.ndarray,
    poses: np.ndarray,
    held: int,
    covers: np.ndarray = NONE,
) -> Truth:
    """Return the true state of a frame; the gripper point is not stored (NaN).

    colours, shapes: int64 [N], as of an Episode. poses: float32 [N, 4]. held: index of a thing, -1
    for none. covers: [C, 2] m.
    """
    things = tuple(
        _thing(*kinds, poses[n].astype(np.float64))
        for n, kinds in enumerate(zip(colours, shapes, strict=True))
        if kinds[0] >= 0
    )
    return Truth(things, np.full(3, np.nan), things[held].name if held >= 0 else '', covers)


def _thing(colour: int, shape: int, pose: np.ndarray) -> ObjectTruth:
    colour, shape = COLOUR_NAMES[colour], SHAPE_NAMES[shape]
    size = np.array(SIZES[shape])
    return ObjectTruth(f'{colour} {shape}', shape, colour, pose[:3], float(pose[3]), size)


def _not_an_episode(path: Path, error: Exception) -> ValueError:
    return ValueError(f'{path} is not an episode: {error}; generate it again')


def write_meta(root: Path, lengths: Sequence[int], fps: float, seed: int, size: int) -> None:
    """Write meta/info.json and meta/episodes.jsonl of a finished dataset of that image size."""
    meta = root / 'meta'
    meta.mkdir(parents=True, exist_ok=True)
    info = {
        'codebase_version': 'embodied_kv npz 1',
        'robot_type': 'tabletop',
        'fps': fps,
        'total_episodes': len(lengths),
        'total_frames': int(sum(lengths)),
        'chunks_size': CHUNK,
        'data_path': 'data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.npz',
        'first_scene_seed': seed,
        'features': {name: {'shape': shape} for name, shape in features(size).items()},
        'colours': COLOUR_NAMES,
        'shapes': SHAPE_NAMES,
    }
    (meta / 'info.json').write_text(json.dumps(info, indent=1) + '\n')
    lines = (
        json.dumps({'episode_index': i, 'length': length}) for i, length in enumerate(lengths)
    )
    (meta / 'episodes.jsonl').write_text('\n'.join(lines) + '\n')
