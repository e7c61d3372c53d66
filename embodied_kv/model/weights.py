"""Reading and writing of weights as safetensors.

Parameter names are our own, or those of openpi and LeRobot (`model.keys`). Tensors are read one by
one into the memory of the model. Missing tensors, left over tensors and other shapes are refused
by name before the model changes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from embodied_kv.model.files import CheckpointError, read_json, refuse_placeholder
from embodied_kv.model.keys import Config, Naming, canonical, row_counts, sources

DTYPES = {'F64', 'F32', 'F16', 'BF16'}
NAMED_IN_AN_ERROR = 6


class WeightSource(Protocol):
    """Named tensors of a checkpoint, which are read one by one.

    Names are in the order in which reading is cheapest. All methods raise CheckpointError for what
    cannot be read.
    """

    path: Path

    @property
    def names(self) -> Collection[str]: ...

    def shape(self, name: str) -> list[int]: ...

    def read(self, name: str) -> Tensor: ...


class Weights:
    """The tensors of a .safetensors file, an index of several, or a folder with either.

    metadata: text that is stored with the tensors. ignore: prefixes of names that are not weights.
    Raises CheckpointError.
    """

    def __init__(self, path: str | Path, ignore: Sequence[str] = ()) -> None:
        self.path = Path(path)
        self.metadata: Mapping[str, str] = {}
        self._files: dict[str, safe_open] = {}
        for file in _files(self.path):
            handle = _open(file)
            names = handle.keys()
            self.metadata = {**self.metadata, **(handle.metadata() or {})}
            for name in names:
                if name in self._files:
                    raise CheckpointError(f'{self.path}: {name} is in two files')
                if not name.startswith(tuple(ignore)):
                    self._files[name] = handle

    @property
    def names(self) -> Collection[str]:
        return self._files.keys()

    def shape(self, name: str) -> list[int]:
        """Return the shape. Raises CheckpointError for a tensor without floating-point numbers."""
        piece = self._files[name].get_slice(name)
        if piece.get_dtype() not in DTYPES:
            raise CheckpointError(f'{self.path}: {name} is {piece.get_dtype()}, expected a float')
        return piece.get_shape()

    def read(self, name: str) -> Tensor:
        """Return the tensor in the dtype of the file."""
        return self._files[name].get_tensor(name)


def write_weights(path: Path, state: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write a file of parameters. about: metadata in addition to the format."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, path, {'format': 'pt', **about})


def fill(
    model: nn.Module, weights: WeightSource, config: Config, naming: Naming | None = None
) -> None:
    """Copy every parameter of `model` from `weights`, converted to the dtype of the model.

    naming: None for our own names, and those of openpi and LeRobot.

    Raises:
        CheckpointError: A tensor is missing, left over, or of another shape.
    """
    parameters = model.state_dict()
    naming = naming or Naming(canonical, lambda name: sources(name, config))
    native = any(name.startswith('backbone.') for name in weights.names)
    spellings: dict[str, list[str]] = {}
    for name in weights.names:
        known = name if native else naming.canonical(name)
        if known is not None:
            spellings.setdefault(known, []).append(name)
    wanted = {name: (name,) if native else naming.sources(name) for name in parameters}
    _check_names(weights.path, spellings, [s for group in wanted.values() for s in group])

    copies: list[tuple[Tensor, str]] = []
    for name, group in wanted.items():
        rows = row_counts(name, len(parameters[name]), config)
        targets = parameters[name].split(rows) if len(group) > 1 else [parameters[name]]
        copies += zip(targets, (spellings[source][0] for source in group), strict=True)
    for target, name in copies:
        found, shape = weights.shape(name), list(target.shape)
        if found != shape:
            raise CheckpointError(f'{weights.path}: {name} is {found}, the model has {shape}')
    for first, *others in spellings.values():
        for other in others:
            if not torch.equal(weights.read(first), weights.read(other)):
                raise CheckpointError(f'{weights.path}: {first} and {other} are tied, but differ')
    order = {name: place for place, name in enumerate(weights.names)}
    with torch.no_grad():
        for target, name in sorted(copies, key=lambda copy: order[copy[1]]):
            target.copy_(weights.read(name))


def _check_names(path: Path, present: Iterable[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in present]
    left_over = sorted(set(present) - set(wanted))
    problems = [
        f'{what}: {", ".join(names[:NAMED_IN_AN_ERROR])}'
        + (f' and {len(names) - NAMED_IN_AN_ERROR} more' if names[NAMED_IN_AN_ERROR:] else '')
        for what, names in (('missing', missing), ('left over', left_over))
        if names
    ]
    if problems:
        raise CheckpointError(f'{path}: {"; ".join(problems)}')


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = (path / 'model.safetensors', path / 'model.safetensors.index.json')
        path = next((file for file in found if file.exists()), found[0])
    if not path.is_file():
        raise CheckpointError(f'{path} does not exist')
    if path.suffix != '.json':
        return [path]
    try:
        names = sorted(set(read_json(path)['weight_map'].values()))
        shards = [path.parent / Path(name).name for name in names]
    except (CheckpointError, KeyError, TypeError, AttributeError) as error:
        reason = f': {error}' if isinstance(error, CheckpointError) else ''
        raise CheckpointError(f'{path} is not an index of safetensors files{reason}') from error
    for shard in shards:
        if not shard.is_file():
            raise CheckpointError(f'{shard} does not exist, but {path.name} names it')
    return shards


def _open(file: Path) -> safe_open:
    refuse_placeholder(file)
    try:
        return safe_open(file, 'pt')
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f'{file} {_what_is_wrong(file)}: {error}') from error


def _what_is_wrong(file: Path) -> str:
    """Return the defect. The format: 8 bytes of header length, the header, the data."""
    size = file.stat().st_size
    with file.open('rb') as stream:
        start = stream.read(9)
        end = 8 + int.from_bytes(start[:8], 'little')
        if start[8:] != b'{' or end > 2**27:
            return 'is not a safetensors file'
        if end <= size:
            try:
                header = json.loads(start[8:] + stream.read(end - 9))
                header.pop('__metadata__', None)
                end += max(tensor['data_offsets'][1] for tensor in header.values())
            except (ValueError, KeyError, TypeError, AttributeError):
                return 'is not a safetensors file'
    return f'is truncated, it has {size} of {end} bytes' if size < end else 'is damaged'
