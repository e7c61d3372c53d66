"""Reading and checking of normalisation statistics of openpi and LeRobot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.model.files import read_json
from embodied_kv.model.processing.normalizer import READS
from embodied_kv.model.weights import CheckpointError, Weights

Entries = Mapping[str, ArrayLike]
PADDING = 1e-6  # largest extent of a number that is always 0


def read_openpi(path: Path) -> dict[str, Entries]:
    """Return {'state': …, 'actions': …} of a norm_stats.json. Raises CheckpointError."""
    stats = read_json(path)
    stats = stats.get('norm_stats', stats)
    for part in ('state', 'actions'):
        if not isinstance(stats.get(part), dict):
            raise CheckpointError(f'{path}: {part} is missing')
    return stats


def read_lerobot(path: Path, feature: str) -> Entries:
    """Return all statistics of a feature in a processor's state file. Raises CheckpointError."""
    tensors, head = Weights(path), f'{feature}.'
    names = [name for name in tensors.names if name.startswith(head)]
    return {name.removeprefix(head): tensors.read(name).float().numpy() for name in names}


def pick(
    where: str, entries: Entries, mode: str, *shapes: tuple[int, ...]
) -> dict[str, NDArray[np.float64]]:
    """Return the statistics that a mode reads. where: file and part, for errors.

    shapes: the valid shapes. Raises CheckpointError that names the entry that is missing, of
    another shape, not finite, or impossible.
    """
    first, second = names = READS[mode]
    found = {}
    for name in names:
        if name not in entries:
            present = ', '.join(entries) or 'nothing'
            raise CheckpointError(
                f'{where}.{name} is missing: {mode} needs {first} and {second}, there is {present}'
            )
        try:
            values = np.array(entries[name], np.float64)
        except (ValueError, TypeError) as error:
            raise CheckpointError(f'{where}.{name} is no list of numbers: {error}') from error
        if values.shape not in shapes:
            wanted = ' or '.join(str(list(shape)) for shape in shapes)
            raise CheckpointError(
                f'{where}.{name} is {list(values.shape)}, expected {wanted}; use the statistics '
                'of the run that trained these weights'
            )
        if not np.isfinite(values).all():
            raise CheckpointError(f'{where}.{name} is not finite')
        found[name] = values
    if found[first].shape != found[second].shape:
        raise CheckpointError(f'{where}.{first} and {where}.{second} differ in shape')
    if mode == 'quantiles' and (found[second] < found[first]).any():
        raise CheckpointError(f'{where}.{second} lies below {where}.{first}')
    if mode == 'mean_std' and (found[second] < 0).any():
        raise CheckpointError(f'{where}.{second} is negative')
    return found


def count(entries: Entries, mode: str) -> int:
    """Return the dims of a part by the statistics that a mode reads; 0 without any."""
    sizes = [0]
    for name in READS[mode]:
        try:
            sizes += np.shape(entries.get(name, ()))[-1:]
        except ValueError:  # a ragged list, which `pick` refuses
            continue
    return max(sizes)


def is_padding(found: Mapping[str, NDArray[np.float64]], mode: str, dims: int) -> bool:
    """Return whether all statistics after the first `dims` are those of padding.

    Such a number is always 0, or was given the statistics of a number that needs no scaling.
    """
    first, second = (found[name][dims:] for name in READS[mode])
    extent = second - first if mode == 'quantiles' else second
    lowest = (0, -1) if mode == 'quantiles' else (0,)
    zero = (np.abs(first) <= PADDING) & (extent <= PADDING)
    return bool((zero | (np.isin(first, lowest) & (second == 1))).all())


def refuse_wide(where: str, part: str, dims: int, padded: int, config: Path) -> None:
    """Raise CheckpointError where an action has more numbers than the network."""
    if dims > padded:
        raise CheckpointError(
            f'{where}: the {part} must have at most the {padded} dims of the network in {config} '
            f'(got {dims}); use the statistics and the config of the run that trained these '
            'weights'
        )
