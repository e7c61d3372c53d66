"""Arrays of an Orbax checkpoint (OCDBT), read by tensorstore without JAX."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied_kv.model.files import CheckpointError, read_json

METADATA, MANIFEST = '_METADATA', 'manifest.ocdbt'
ROOT, LAST = 'params', 'value'  # keys of the tree without a meaning for weights
INSTALL = "install the extra 'jax': pip install '.[jax]' in the source tree"
AGAIN = 'copy the folder again, with all its files'
# The name of a dtype -> numpy's type of the same bits, and the dtype of a tensor of these bits.
DTYPES = {
    'float32': ('float32', torch.float32),
    'float64': ('float64', torch.float64),
    'float16': ('float16', torch.float16),
    'bfloat16': ('int16', torch.bfloat16),  # numpy has no bfloat16
}


class Leaves:
    """The arrays of a folder, by the path of their keys without the root and a last key `value`.

    Released checkpoints of openpi lack the last key. Raises CheckpointError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        about = read_json(folder / METADATA)
        if not (folder / MANIFEST).is_file():
            raise CheckpointError(
                f'{folder} must be written in the format OCDBT, which is the default of Orbax '
                f'(got no {MANIFEST}); {AGAIN}'
            )
        self._driver = 'zarr3' if about.get('use_zarr3') else 'zarr'
        keys = _keys(folder, about)
        marked = all(key[-1] == LAST for key in keys)
        self._keys = {'/'.join(key[1:-1] if marked else key[1:]): key for key in keys}
        self._stores: dict[str, Any] = {}

    @property
    def names(self) -> Collection[str]:
        return self._keys.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape. Raises CheckpointError for an array without floating-point numbers."""
        return tuple(self._store(name).shape)

    def read(self, name: str) -> Tensor:
        """Return the array in its dtype."""
        store = self._store(name)
        bits, dtype = DTYPES[store.dtype.name]
        try:
            values = store.read().result()
        except ValueError as error:
            raise CheckpointError(
                f'{self._folder}: {name} cannot be read: {error}; {AGAIN}'
            ) from error
        return torch.from_numpy(values.view(bits)).view(dtype)

    def _store(self, name: str) -> Any:
        """Return the array of tensorstore, opened at its first use."""
        if name not in self._stores:
            self._stores[name] = self._opened(name)
        return self._stores[name]

    def _opened(self, name: str) -> Any:
        try:
            import tensorstore  # an extra
        except ImportError as error:
            raise CheckpointError(
                f'{self._folder}: a JAX checkpoint is read by tensorstore; {INSTALL}'
            ) from error
        where = {
            'driver': 'ocdbt',
            'base': (self._folder.resolve()).as_uri(),
            'path': '.'.join(self._keys[name]) + '/',
        }
        try:
            spec = {'driver': self._driver, 'kvstore': where}
            store = tensorstore.open(spec, open=True, read=True).result()
        except ValueError as error:
            raise CheckpointError(
                f'{self._folder}: {name} cannot be opened: {error}; {AGAIN}'
            ) from error
        if store.dtype.name not in DTYPES:
            raise CheckpointError(
                f'{self._folder}: {name} must be one of {", ".join(DTYPES)} (got '
                f'{store.dtype.name}); use a checkpoint of pi0 or pi0.5'
            )
        return store


def _keys(folder: Path, about: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the keys of each array. Raises CheckpointError."""
    try:
        keys = [
            tuple(part['key'] for part in leaf['key_metadata'])
            for leaf in about['tree_metadata'].values()
        ]
        proper = bool(keys) and all(
            len(key) > 1 and key[0] == ROOT and all(isinstance(part, str) for part in key)
            for key in keys
        )
    except (KeyError, TypeError, AttributeError):
        proper = False
    if not proper:
        raise CheckpointError(
            f"{folder / METADATA} must list arrays below the key '{ROOT}' (got something else); "
            "use the folder of a step of openpi's training, with its folder params"
        )
    return keys
