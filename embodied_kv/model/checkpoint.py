"""A policy on disk: weights, the dimensions they belong to, normalisation statistics, tokenizer.

Knows our own folder (model.safetensors with the config in its metadata, norm_stats.json,
tokenizer.json) and where openpi and LeRobot keep the same things. Nothing is unpickled; nothing
that is missing is replaced by a guess.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

import embodied_kv
from embodied_kv import storage
from embodied_kv.config import BackboneConfig, ExpertConfig, ModelConfig, VisionConfig
from embodied_kv.model.preprocess import Normalizer
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, Weights, fill, write_weights

T = TypeVar('T')

ASSETS = Path(embodied_kv.__file__).parent / 'assets'  # weights that come with the package
CONFIG, WORDS = 'embodied_kv.config', 'embodied_kv.tokenizer'
# Fields that may differ between a checkpoint and the model that it is loaded into.
FREE = {'name', 'dtype'}


def load_policy_parts(
    path: str | Path, model: nn.Module, config: ModelConfig
) -> tuple[Tokenizer, Normalizer]:
    """Fill `model` from a checkpoint of exactly these dimensions; return what came with it.

    path: our folder, a safetensors file, or a folder of openpi's or LeRobot's; tokenizer.json and
    the statistics lie beside the weights. Raises CheckpointError.
    """
    weights = Weights(path)
    if CONFIG in weights.metadata:
        _check_same(weights.path, asdict(_parse_config(weights)), asdict(config))
    folder = weights.path if weights.path.is_dir() else weights.path.parent
    try:
        _check_words(weights.metadata, folder / 'tokenizer.json')
        tokenizer = Tokenizer.load(folder, limit=config.backbone.vocab_size)
        normalizer = Normalizer.from_dict(_read_stats(folder), config)
    except ValueError as error:
        raise CheckpointError(f'{weights.path}: {error}') from error
    fill(model, weights, config)
    return tokenizer, normalizer


def read_config(path: str | Path) -> ModelConfig:
    """The dimensions that one of our own checkpoints carries. Raises CheckpointError."""
    return _parse_config(Weights(path))


def save(
    path: str | Path,
    state: dict[str, Tensor],
    config: ModelConfig,
    normalizer: Normalizer,
    tokenizer: Tokenizer,
    card: dict[str, str] | None = None,
) -> None:
    """Write our own folder, in place of the old one: whole, or not at all.

    card: what else the metadata should say, such as what the weights are made of and made for.
    """
    with storage.replaced_folder(Path(path)) as new:
        tokenizer.save(new / 'tokenizer.json')
        (new / 'norm_stats.json').write_text(json.dumps(normalizer.to_dict(), indent=1))
        about = {CONFIG: json.dumps(asdict(config)), WORDS: _digest(new / 'tokenizer.json')}
        write_weights(new / 'model.safetensors', state, about | dict(card or {}))


def _parse_config(weights: Weights) -> ModelConfig:
    if CONFIG not in weights.metadata:
        raise CheckpointError(f'{weights.path} does not say its dimensions: name a preset for it')
    parts = dict(vision=VisionConfig, backbone=BackboneConfig, expert=ExpertConfig)
    try:
        values = json.loads(weights.metadata[CONFIG])
        values |= {part: build_config(kind, values[part]) for part, kind in parts.items()}
        return build_config(ModelConfig, values | dict(views=tuple(values['views'])))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{weights.path}: its config is not one of ours: {error}') from error


def build_config(kind: type[T], values: Mapping[str, Any]) -> T:
    """A config from its fields. Raises ValueError that names those that lack or are unknown."""
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    odd = {'lacks': needed - {*values}, 'has unknown': {*values} - names}
    if any(odd.values()):
        said = (f'{what} {", ".join(sorted(some))}' for what, some in odd.items() if some)
        raise ValueError(f'{kind.__name__} {", ".join(said)}')
    return kind(**values)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_words(metadata: dict[str, str], path: Path) -> None:
    """Raises ValueError for a tokenizer.json that is not the one the weights were trained with."""
    if WORDS in metadata and path.is_file() and metadata[WORDS] != _digest(path):
        raise ValueError(f'{path.name} is not the one that these weights were trained with')


def _check_same(path: Path, there: dict, here: dict, prefix: str = '') -> None:
    """Raises CheckpointError that names the first field in which two configs differ."""
    for name, value in here.items():
        if isinstance(value, dict):
            _check_same(path, there[name], value, f'{name}.')
        elif value != there[name] and name not in FREE:
            raise CheckpointError(
                f'{path}: {prefix}{name} is {there[name]}, the model has {value}'
            )


def _read_stats(folder: Path) -> dict:
    """Quantiles from norm_stats.json (ours, openpi's) or from LeRobot's preprocessor.

    Raises ValueError where there are none, or more than one.
    """
    found = [
        *folder.glob('norm_stats.json'),
        *folder.glob('assets/**/norm_stats.json'),
        *folder.glob('policy_preprocessor*normalizer*.safetensors'),
    ]
    if len(found) != 1:
        names = ', '.join(str(file.relative_to(folder)) for file in found) or 'none'
        raise ValueError(f'one norm_stats.json is expected beside the weights, found: {names}')
    if found[0].suffix == '.json':
        try:
            return json.loads(found[0].read_text())
        except ValueError as error:
            raise ValueError(f'{found[0].name} is not JSON: {error}') from error
    tensors = Weights(found[0])
    spelling = {'state': 'observation.state', 'actions': 'action'}
    return {
        part: {
            q: tensors.read(f'{name}.{q}').tolist()
            for q in ('q01', 'q99')
            if f'{name}.{q}' in tensors.names
        }
        for part, name in spelling.items()
    }
