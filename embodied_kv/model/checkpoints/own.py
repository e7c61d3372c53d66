"""Our own folder: model.safetensors with its dimensions in the metadata, statistics, tokenizer.

Knows what is written and how it is read back: norm_stats.json is openpi's, with `delta` beside it
for the relative actions. Nothing is unpickled; nothing that is missing is replaced by a guess.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

import embodied_kv
from embodied_kv import storage
from embodied_kv.config import BackboneConfig, ExpertConfig, ModelConfig, VisionConfig
from embodied_kv.model.checkpoints import statistics
from embodied_kv.model.checkpoints.checkpoint import Checkpoint
from embodied_kv.model.checkpoints.facts import Facts, read_json
from embodied_kv.model.processing import images, own, scaling
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.processing.scaling import READS
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, Weights, write_weights
from embodied_kv.robots.contract import Declared

T = TypeVar('T')

ASSETS = Path(embodied_kv.__file__).parent / 'demo' / 'assets'  # weights of the demo
CONFIG, WORDS = 'embodied_kv.config', 'embodied_kv.tokenizer'
MOST_GIVEN = 'embodied_kv.rtc'  # of a card: first actions that may be given, at most
SAYS = 'embodied_kv.says'  # of a card: a list of the prompts that it learnt to answer
STATISTICS, TOKENIZER = 'norm_stats.json', 'tokenizer.json'
# Fields that may differ between a checkpoint and the model that it is loaded into.
FREE = {'name', 'dtype'}


def bundled(preset: str) -> Path:
    """The checkpoint that comes with the package. Raises ValueError where there is none."""
    path = ASSETS / preset
    if not path.exists():
        raise ValueError(
            f"preset '{preset}' has no checkpoint of its own: name one in `checkpoint`, or "
            "'random'"
        )
    return path


def describe(
    weights: Weights, declared: Declared | None, config: ModelConfig | None
) -> Checkpoint:
    """Of weights whose metadata has CONFIG. config: what they have to be, name and dtype aside.

    Raises CheckpointError that names the first dimension that differs, or what is missing.
    """
    there = _parse_config(weights)
    if config is not None:
        _check_same(weights.path, asdict(there), asdict(config))
    else:
        config = there
    folder = weights.path if weights.path.is_dir() else weights.path.parent
    _check_words(weights, folder / TOKENIZER)
    facts = Facts(weights.path, declared)
    path = folder / STATISTICS
    stats, fps = read_json(path), round(1 / config.action_dt, 9)
    relative = facts.settle('relative', _relative(path, stats))
    modes = facts.modes({'state': 'quantiles', 'action': 'quantiles'})
    known = dict(state_in_prompt=True, conversion='none', resize=images.OWN_RESIZE.name, fps=fps)
    for name, value in known.items() | {('chunk_size', config.chunk_size)}:
        facts.settle(name, value)
    names = {part: facts.settle(f'{part}_names', needed=False) for part in ('state', 'action')}
    facts.dims('state', names['state'], config.state_dim)
    facts.dims('action', names['action'], config.action_dim)
    views = facts.views(config.views)
    facts.check()
    return Checkpoint(
        kind='own',
        path=folder,
        config=replace(config, views=views),
        processing=own.processing(_normalizer(path, stats, config, modes, relative)),
        weights=weights,
        tokenizer_path=folder / TOKENIZER,
        slots=config.views,
        n_action_steps=config.chunk_size,
        fps=fps,
        state_names=names['state'],
        action_names=names['action'],
        most_given=int(weights.metadata.get(MOST_GIVEN, 0)),
        says=_says(weights),
    )


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
        tokenizer.save(new / TOKENIZER)
        (new / STATISTICS).write_text(json.dumps(to_json(normalizer), indent=1))
        about = {CONFIG: json.dumps(asdict(config)), WORDS: _digest(new / TOKENIZER)}
        write_weights(new / 'model.safetensors', state, about | dict(card or {}))


def to_json(normalizer: Normalizer) -> dict:
    """What norm_stats.json holds."""
    scales = {'state': normalizer.state_scale, 'actions': normalizer.action_scale}
    stats = {
        part: {name: scale.statistics[name].tolist() for name in READS[scale.mode]}
        for part, scale in scales.items()
    }
    return {'norm_stats': stats, 'delta': normalizer.relative.tolist()}


def _normalizer(
    path: Path,
    stats: dict,
    config: ModelConfig,
    modes: Mapping[str, str],
    relative: Sequence[bool],
) -> Normalizer:
    if len(relative) != config.action_dim:
        raise CheckpointError(
            f'{path}: delta is [{len(relative)}], the model has [{config.action_dim}]'
        )
    if any(relative[config.state_dim :]):
        raise CheckpointError(f'{path}: delta beyond the {config.state_dim} joints of the state')
    entries = stats.get('norm_stats', stats)
    per_step = (config.chunk_size, config.action_dim)
    shapes = {'state': [(config.state_dim,)], 'actions': [(config.action_dim,), per_step]}
    scales = []
    for part, shape in shapes.items():
        mode = modes[part.removesuffix('s')]
        found = statistics.pick(f'{path}: {part}', entries.get(part) or {}, mode, *shape)
        scales.append(scaling.own(mode, found))
    return Normalizer(*scales, np.array(relative, bool))


def _relative(path: Path, stats: dict) -> tuple[bool, ...] | None:
    delta = stats.get('delta')
    if delta is None:
        return None
    if not isinstance(delta, list) or not all(isinstance(one, bool) for one in delta):
        raise CheckpointError(f'{path}: delta is no list of true and false')
    return tuple(delta)


def _says(weights: Weights) -> tuple[str, ...] | None:
    if SAYS not in weights.metadata:
        return None
    try:
        said = json.loads(weights.metadata[SAYS])
    except ValueError as error:
        raise CheckpointError(f'{weights.path}: {SAYS} is no list: {error}') from error
    if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
        raise CheckpointError(f'{weights.path}: {SAYS} is {said!r}, no list of prompts')
    return tuple(said)


def _parse_config(weights: Weights) -> ModelConfig:
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


def _check_words(weights: Weights, path: Path) -> None:
    """Raises CheckpointError for a tokenizer.json other than the weights were trained with."""
    if WORDS in weights.metadata and path.is_file() and weights.metadata[WORDS] != _digest(path):
        raise CheckpointError(
            f'{weights.path}: {path.name} is not the one that these weights were trained with'
        )


def _check_same(path: Path, there: dict, here: dict, prefix: str = '') -> None:
    """Raises CheckpointError that names the first field in which two configs differ."""
    for name, value in here.items():
        if isinstance(value, dict):
            _check_same(path, there[name], value, f'{name}.')
        elif value != there[name] and name not in FREE:
            raise CheckpointError(
                f'{path}: {prefix}{name} is {there[name]}, the model has {value}'
            )
