"""Match the columns of a LeRobot data set, and the names of their numbers, with a contract.

LeRobot writes names as a list, as `{motors: [...]}`, as `{name: index}`, nested, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_kv.data.lerobot_layout import ACTION, COUNTED, STATE, image_key
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import Dimension
from embodied_kv.text import listed, shown
from training.data.lerobot_checks import DataSetError

USUAL = {STATE: 'state', ACTION: 'actions'}  # columns of openpi's data sets
CHANNELS = 1, 3


@dataclass(frozen=True)
class Camera:
    """A column of images. is_video: whether they are in a video file. codec: that of info.json."""

    column: str
    is_video: bool
    channels: int
    codec: str


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of a data set by the names of the contract.

    numbers: columns of state and action. orders: places in the column of the contract's numbers,
    only where the order differs. cameras: by view.
    """

    numbers: Mapping[str, str]
    orders: Mapping[str, NDArray[np.intp]]
    cameras: Mapping[str, Camera]


def match(
    features: Mapping[str, Mapping[str, Any]],
    robot: Embodiment,
    rename_map: Mapping[str, str],
) -> Columns:
    """Return the columns of a robot's views, state and action.

    Args:
        features: `features` of meta/info.json.
        robot: Robot with the contract.
        rename_map: Names by the contract of columns that have another name, as in LeRobot.

    Raises:
        DataSetError: A column is missing, or its numbers do not fit the contract's.
    """
    contract, named = robot.contract, _renamed(features, rename_map, robot)
    images = {k: c for k, c in named.items() if features[c]['dtype'] in ('image', 'video')}
    wanted = {view: (image_key(view), view) for view in contract.views}
    views = {
        view: next(images[key] for key in keys if key in images)
        for view, keys in wanted.items()
        if images.keys() & set(keys)
    }
    missing = [image_key(view) for view in contract.views if view not in views]
    missing += [key for key in (STATE, ACTION) if key not in named]
    if missing:
        left = [column for column in images.values() if column not in views.values()]
        raise DataSetError(_advice(missing, left, features, contract.robot_type))
    orders = {}
    for key, dimensions, sources in (
        (STATE, robot.state.dimensions, contract.state),
        (ACTION, robot.actions.dimensions, contract.action),
    ):
        feature = features[named[key]]
        if list(feature['shape']) != [len(dimensions)]:
            raise DataSetError(
                f'{key} must have {len(dimensions)} numbers, as {contract.robot_type} has (got '
                f'shape {list(feature["shape"])}); give the contract that it was recorded with'
            )
        names = dimension_names(key, feature.get('names'), len(dimensions))
        order = _order(key, names, dimensions, bool(sources[0].names))
        if order is not None:
            orders[key] = order
    cameras = {view: _camera(column, features[column]) for view, column in views.items()}
    return Columns({key: named[key] for key in (STATE, ACTION)}, orders, cameras)


def _renamed(
    features: Mapping[str, Any], rename_map: Mapping[str, str], robot: Embodiment
) -> dict[str, str]:
    """Return the columns by their names after renaming."""
    aliases = {view: image_key(view) for view in robot.contract.views}
    targets = {old: aliases.get(new, new) for old, new in rename_map.items()}
    if unknown := [k for k, new in targets.items() if k not in features and new not in features]:
        raise DataSetError(
            f'rename_map must map columns of the data set (got {listed(unknown)}; there are '
            f'{listed([key for key in features if key not in COUNTED])})'
        )
    found: dict[str, str] = {}
    for column in features:
        name = targets.get(column, column)
        if name in found:
            raise DataSetError(
                f'rename_map must map one column to {name} (got {found[name]} and {column}); '
                'rename the other one, too'
            )
        found[name] = column
    return found


def _advice(
    missing: Sequence[str], images: Sequence[str], features: Mapping[str, Any], robot: str
) -> str:
    """Return the error for missing columns, with the option that names them if it is clear."""
    spare = iter(images)
    guesses = {}
    for key in missing:
        guess = USUAL.get(key) if key in USUAL else next(spare, None)
        if guess in features:
            guesses[guess] = key
    known = [key for key in features if key not in COUNTED]
    fix = 'give the contract that it was recorded with'
    if guesses:
        fix = f"name them, such as --rename-map '{json.dumps(guesses)}'"
    return (
        f'columns of the data set must contain {listed(missing)} of {robot} (got '
        f'{listed(known)}); {fix}'
    )


def _camera(column: str, feature: Mapping[str, Any]) -> Camera:
    """Return the camera of a column. Raises DataSetError for other images than RGB and grey."""
    described = {**(feature.get('video_info') or {}), **(feature.get('info') or {})}
    if described.get('is_depth_map') or described.get('video.is_depth_map'):
        raise DataSetError(f'{column} must contain RGB or grey images (got a depth map)')
    shape, names = list(feature['shape']), feature.get('names')
    is_first = isinstance(names, list) and names and str(names[0]).startswith('channel')
    channels = shape[0] if is_first else shape[-1]
    if len(shape) != 3 or channels not in CHANNELS:
        raise DataSetError(
            f'{column} must have the shape [height, width, 1 or 3] (got {shape}); write it with 3 '
            'channels'
        )
    codec = str(described.get('video.codec') or 'unknown')
    return Camera(column, feature['dtype'] == 'video', channels, codec)


# ------------------------------------------------------------------ names of numbers


def dimension_names(key: str, names: Any, size: int) -> list[str] | None:
    """Return the name of each number of a vector; None if its numbers have no names.

    One name of several numbers is a name of the vector, such as openpi's `[state]`. Equal names in
    several groups get the name of their group: left.elbow.

    Raises:
        DataSetError: The names do not belong to `size` numbers, or have an unknown form.
    """
    leaves = list(_leaves(key, names, ()))
    if not leaves or (len(leaves) == 1 and size > 1):
        return None
    if len(leaves) != size:
        raise DataSetError(
            f'names of {key} must be one for each of its {size} numbers (got {len(leaves)}); '
            'correct meta/info.json'
        )
    found = [path[-1] for path, _ in leaves]
    if len({*found}) < size:
        groups = zip(*(path for path, _ in leaves), strict=False)
        common = next((i for i, names in enumerate(groups) if len({*names}) > 1), 0)
        found = ['.'.join(path[common:]) for path, _ in leaves]
    places = [place for _, place in leaves]
    if any(place is not None for place in places):
        if sorted(-1 if place is None else place for place in places) != list(range(size)):
            raise DataSetError(
                f'indices of the names of {key} must be 0 to {size - 1}, each once (got '
                f'{shown(places)}); correct meta/info.json'
            )
        found = [found[places.index(i)] for i in range(size)]
    if len({*found}) < size:
        raise DataSetError(
            f'names of {key} must differ (got {listed(found)}); correct meta/info.json'
        )
    return found


def _leaves(
    key: str, names: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], int | None]]:
    """Yield each name, after the names of its groups, with its index if one is given."""
    if isinstance(names, Mapping):
        for name, value in names.items():
            if isinstance(value, int) and not isinstance(value, bool):
                yield (*path, str(name)), value
            else:
                yield from _leaves(key, value, (*path, str(name)))
    elif isinstance(names, list):
        for name in names:
            yield from _leaves(key, name, path)
    elif isinstance(names, str):
        yield (*path, names), None
    elif names is not None:
        raise DataSetError(
            f'names of {key} must be texts in lists or mappings (got {shown(names)}); correct '
            'meta/info.json'
        )


def _order(
    key: str, names: list[str] | None, dimensions: Sequence[Dimension], is_declared: bool
) -> NDArray[np.intp] | None:
    """Return the place in a column of each number of the contract; None if the order is the same.

    The names of a contract that declares none are those of its joints, also with LeRobot's `.pos`.
    """
    own = [dimension.name for dimension in dimensions]
    forms = [own]
    if not is_declared:
        axes = [dimension.axis for dimension in dimensions]
        forms += [axes, [f'{axis}.pos' for axis in axes]]
    if names is None or names in forms:
        return None
    for form in forms:
        if len({*form}) == len(form) and {*form} == {*names}:
            return np.array([names.index(name) for name in form])
    if is_declared or any({*form} & {*names} for form in forms):
        raise DataSetError(
            f'names of {key} must be those of the contract, {listed(own)} (got {listed(names)}); '
            'give the contract that it was recorded with, or correct its names'
        )
    return None
