"""Files, columns and info of LeRobot's data sets, version 3.0.

Source: LeRobot 0.4 and later, `lerobot/datasets`. Version 2.1 is in `lerobot_v21`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from embodied_kv.robots.embodiment import Embodiment

VERSION = 'v3.0'
INFO, STATS, TASKS = 'meta/info.json', 'meta/stats.json', 'meta/tasks.parquet'
EPISODES = 'meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet'
DATA = 'data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet'
FILES = 1000  # in a chunk
DATA_MIB = 100  # approximate size of a file
STATE, ACTION, IMAGES = 'observation.state', 'action', 'observation.images.'
INTERVENTION = 'complementary_info.is_intervention'
# Optional columns, NaN if the place of an object is unknown. LeRobot's policies ignore them.
POSITION = 'complementary_info.position.'  # followed by the name of an object: x, y, z in m
PIXEL = 'complementary_info.pixel.'  # followed by VIEW.NAME: column and row in the image
SUBTASK, SUBTASKS = 'subtask_index', 'meta/subtasks.parquet'
COUNTED = {  # columns of all data sets
    'timestamp': 'float32',
    'frame_index': 'int64',
    'episode_index': 'int64',
    'index': 'int64',
    'task_index': 'int64',
}
PICTURE = pa.struct({'bytes': pa.binary(), 'path': pa.string()})


def image_key(view: str) -> str:
    """Return the column of a view."""
    return view if view.startswith(IMAGES) else IMAGES + view


def position_key(name: str) -> str:
    """Return the column of the position of an object; `red cube` becomes red_cube."""
    return POSITION + name.replace(' ', '_')


def pixel_key(view: str, name: str) -> str:
    """Return the column of the place of an object in the image of a view."""
    return f'{PIXEL}{image_key(view).removeprefix(IMAGES)}.{name.replace(" ", "_")}'


def name_of(key: str) -> str:
    """Return the object of a position or pixel column; the name of a view may contain dots."""
    return key.rpartition('.')[2].replace('_', ' ')


def features(
    robot: Embodiment, shapes: Mapping[str, tuple[int, int, int]], known: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the features of a data set.

    shapes: (height, width, channels) by view. known: extra columns.
    """
    numbers = {
        STATE: [d.name for d in robot.state.dimensions],
        ACTION: [d.name for d in robot.actions.dimensions],
    }
    return {
        **{
            key: {'dtype': 'float32', 'shape': [len(names)], 'names': names}
            for key, names in numbers.items()
        },
        **{
            image_key(view): {
                'dtype': 'image',
                'shape': list(shape),
                'names': ['height', 'width', 'channels'],
            }
            for view, shape in shapes.items()
        },
        INTERVENTION: {'dtype': 'bool', 'shape': [1], 'names': None},
        **{key: _optional(key) for key in known},
        **{key: {'dtype': kind, 'shape': [1], 'names': None} for key, kind in COUNTED.items()},
    }


def _optional(key: str) -> dict[str, Any]:
    if key == SUBTASK:
        return {'dtype': 'int64', 'shape': [1], 'names': None}
    names = ['x', 'y', 'z'] if key.startswith(POSITION) else ['column', 'row']
    return {'dtype': 'float32', 'shape': [len(names)], 'names': names}


def schema(described: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    """Return the schema of the files in data/."""
    return pa.schema([(name, _type(feature)) for name, feature in described.items()])


def _type(feature: Mapping[str, Any]) -> pa.DataType:
    if feature['dtype'] == 'image':
        return PICTURE
    kind = pa.type_for_alias(feature['dtype'])
    (size,) = feature['shape']
    return kind if size == 1 else pa.list_(kind, size)


def info(
    robot: Embodiment,
    described: Mapping[str, Mapping[str, Any]],
    episodes: int,
    frames: int,
    tasks: int,
) -> dict[str, Any]:
    """Return the content of meta/info.json."""
    return {
        'codebase_version': VERSION,
        'robot_type': robot.contract.robot_type,
        'total_episodes': episodes,
        'total_frames': frames,
        'total_tasks': tasks,
        'chunks_size': FILES,
        'data_files_size_in_mb': DATA_MIB,
        'video_files_size_in_mb': 200,
        'fps': round(robot.contract.fps),
        'splits': {'train': f'0:{episodes}'},
        'data_path': DATA,
        'video_path': None,
        'features': dict(described),
    }
