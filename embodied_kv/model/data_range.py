"""The statistics of a checkpoint in units of a robot, and a comparison with a data set of it.

A number that stood still in the training data, and data outside of the range of the training, are
reported as warnings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_kv.model.checkpoints.checkpoint import Checkpoint
from embodied_kv.model.files import refuse_placeholder
from embodied_kv.model.processing.normalizer import LARGEST, STILL, Scaling
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import ActionDimension, Dimension

# Columns of a data set of LeRobot, and those that openpi's examples write.
COLUMNS = {'state': ('observation.state', 'state'), 'action': ('action', 'actions')}
OUTSIDE = 1.5  # quantiles beyond it are reported; -1 … 1 is the range of the training
NORMAL = 2.326  # deviations from the mean to the 99% quantile of a normal distribution
NARROW = 0.05  # a data set with a smaller part of the range of the training is reported


@dataclass(frozen=True, eq=False)
class DataRange:
    """One number of a data set, next to the statistics of a checkpoint.

    part: 'state' or 'action'. low, high: 1% and 99% quantile (policy units). normalised: both,
    where -1 … 1 is the range of the training. warnings: what is unusual.
    """

    part: str
    name: str
    low: float
    high: float
    normalised: tuple[float, float]
    warnings: tuple[str, ...]


def warnings(robot: Embodiment, checkpoint: Checkpoint) -> list[str]:
    """Return a line for each number of the state, and each position, that stood still."""
    normalizer, lines = checkpoint.processing.normalizer, []
    for i, d in enumerate(robot.state.dimensions):
        if not _is_still(normalizer.state_scale, i):
            continue
        low, high = _ends(normalizer.state_scale, i)
        lines.append(
            f'state {d.name} stood still in the training data ({low:.5g} … {high:.5g} {d.unit}); '
            f'the policy receives another position as at most {LARGEST:g}, normalised: keep it '
            'there, or train with data in which it moves'
        )
    for i, d in enumerate(robot.actions.dimensions):
        if _is_still(normalizer.action_scale, i) and not (d.relative or d.is_velocity):
            low, high = _ends(normalizer.action_scale, i)
            lines.append(
                f'action {d.name} stood still in the training data: the policy always commands '
                f'{low:.5g} … {high:.5g} {d.unit}'
            )
    return lines


def compare(robot: Embodiment, checkpoint: Checkpoint, folder: Path) -> list[DataRange]:
    """Return the range of each number of a data set, next to that of the checkpoint.

    Actions that are offsets from the state are left out: the data set has positions. Raises
    ValueError, OSError.
    """
    processing = checkpoint.processing
    normalizer, conversion = processing.normalizer, processing.conversion
    dims = {'state': checkpoint.config.state_dim, 'action': checkpoint.config.action_dim}
    state, action = (
        read(folder, part, count, checkpoint.padded.get(part, count))
        for part, count in dims.items()
    )
    state, action = conversion.state(state), conversion.decode_actions(action)
    parts = (
        ('state', normalizer.state_scale, robot.state.dimensions, state),
        ('action', normalizer.action_scale, robot.actions.dimensions, action),
    )
    return [
        _range(part, scale, i, d, values[:, i])
        for part, scale, dimensions, values in parts
        for i, d in enumerate(dimensions)
        if not (isinstance(d, ActionDimension) and d.relative)
    ]


def read(folder: Path, part: str, dims: int, padded: int) -> NDArray[np.float64]:
    """Return the states or actions of all episodes, float64 [frames, dims].

    padded: dims of a data set with padding. Raises ValueError, OSError where the folder is no data
    set of LeRobot, or of other dims.
    """
    import pyarrow.parquet as pq  # only a comparison needs it

    files = sorted(folder.glob('data/**/*.parquet'))
    if not files:
        raise ValueError(
            f'{folder} must be a data set of LeRobot (got no data/**/*.parquet); download all its '
            'files'
        )
    pieces = []
    for file in files:
        refuse_placeholder(file)
        try:
            known = pq.read_schema(file).names
            name = next((name for name in COLUMNS[part] if name in known), None)
            if name is None:
                raise ValueError(
                    f'it must have a column {" or ".join(COLUMNS[part])} (got {", ".join(known)})'
                )
            column = pq.read_table(file, columns=[name])[name].combine_chunks()
            numbers = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
            width = numbers.size / max(len(column), 1)
            if len(column) and width not in (dims, padded):
                raise ValueError(
                    f'{name} must have the {dims} dims of the checkpoint (got {width:g}); use a '
                    'data set of this robot'
                )
        except Exception as error:  # pyarrow raises many types for files that are damaged
            raise ValueError(f'{file}: {error}') from error
        if len(column):
            pieces.append(numbers.reshape(len(column), -1)[:, :dims])
    values = np.concatenate(pieces) if pieces else np.zeros((0, dims))
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f'{folder}: {part} must be finite numbers of at least one frame')
    return values


def _range(part: str, scale: Scaling, i: int, d: Dimension, values: NDArray) -> DataRange:
    low, high = (float(q) for q in np.quantile(values, (0.01, 0.99)))
    trained = _ends(scale, i)
    extent = trained[1] - trained[0]
    middle = sum(trained) / 2
    start, end = (2 * (x - middle) / max(extent, 1e-6) for x in (low, high))
    found = []
    is_still = high - low < STILL * abs(d.scale)
    if is_still and not (d.is_velocity or _is_still(scale, i)):
        found.append(
            f'{part} {d.name} stands still in the data set ({low:.5g} … {high:.5g} {d.unit})'
        )
    if max(abs(start), abs(end)) > OUTSIDE:
        found.append(
            f'{part} {d.name} of the data set lies at {start:.3g} … {end:.3g}, '
            'where the training lies at -1 … 1: compare unit, sign and zero'
        )
    elif not is_still and high - low < NARROW * extent:
        found.append(
            f'{part} {d.name} spans {100 * (high - low) / extent:.2g}% of the range of the '
            'training: compare its unit'
        )
    return DataRange(part, d.name, low, high, (start, end), tuple(found))


def _is_still(scale: Scaling, i: int) -> bool:
    return bool(scale.still[..., i].all())


def _ends(scale: Scaling, i: int) -> tuple[float, float]:
    """Return the range of the training (policy units), over all actions of a chunk.

    It lies between the 1% and 99% quantiles; with mean and deviation, of a normal distribution.
    """
    dims, end = scale.origin.shape[-1], 1.0 if scale.mode == 'quantiles' else NORMAL
    low, high = (scale.unnormalise(np.full(dims, y))[..., i] for y in (-end, end))
    return float(low.min()), float(high.max())
