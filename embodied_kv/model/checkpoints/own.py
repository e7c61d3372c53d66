"""Checkpoints of this project: model.safetensors, norm_stats.json and tokenizer.json.

The metadata of the weights has their dimensions. norm_stats.json has the format of openpi, and
`delta` for the relative actions. Nothing is unpickled, and nothing that is missing is guessed.
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
from embodied_kv.model.checkpoints.facts import Facts
from embodied_kv.model.files import read_json
from embodied_kv.model.keys import Config
from embodied_kv.model.processing.images import OWN_RESIZE
from embodied_kv.model.processing.normalizer import READS, Normalizer, Scaling
from embodied_kv.model.processing.processing import Processing
from embodied_kv.model.processing.prompt import own_prompt
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, Weights, write_weights
from embodied_kv.robots.declared import Declared

T = TypeVar('T', bound=Config | BackboneConfig | ExpertConfig | VisionConfig)

ASSETS = Path(embodied_kv.__file__).parent / 'demo' / 'assets'  # weights of the demo
# Metadata: dimensions; digest of the tokenizer; longest action prefix that the policy was trained
# with; list of the prompts that it was trained to answer.
CONFIG, WORDS = 'embodied_kv.config', 'embodied_kv.tokenizer'
MAX_ACTION_PREFIX, MAX_MEMORY_ROWS = 'embodied_kv.rtc', 'embodied_kv.memory_rows'
SAYS = 'embodied_kv.says'
STATISTICS, TOKENIZER = 'norm_stats.json', 'tokenizer.json'
FREE = {'name', 'dtype'}  # fields that may differ between a checkpoint and the model


def bundled(preset: str) -> Path:
    """Return the checkpoint of this package. Raises ValueError where there is none."""
    path = ASSETS / preset
    if not path.exists():
        raise ValueError(
            f"preset '{preset}' has no bundled checkpoint; set `checkpoint` to a folder, or to "
            "'random'"
        )
    return path


def describe(
    weights: Weights, declared: Declared | None, config: ModelConfig | None
) -> Checkpoint:
    """Return the description of weights with CONFIG in their metadata.

    config: the required dimensions; name and dtype may differ. Raises CheckpointError that names
    the first dimension that differs, or the missing part.
    """
    found = _parse_config(weights)
    config = config or found
    check_same(weights.path, found, config)
    folder = weights.path if weights.path.is_dir() else weights.path.parent
    _check_words(weights, folder / TOKENIZER)
    facts = Facts(weights.path, declared)
    path = folder / STATISTICS
    stats, fps = read_json(path), round(1 / config.action_dt, 9)
    relative = facts.settle('relative', _relative(path, stats))
    modes = facts.modes({'state': 'quantiles', 'action': 'quantiles'})
    in_prompt = not config.state_width
    known = dict(state_in_prompt=in_prompt, conversion='none', resize=OWN_RESIZE.name, fps=fps)
    for name, value in known.items() | {('chunk_size', config.chunk_size)}:
        facts.settle(name, value)
    names = {part: facts.settle(f'{part}_names', needed=False) for part in ('state', 'action')}
    facts.dims('state', config.state_dim)
    facts.dims('action', config.action_dim)
    views = facts.views(config.views)
    facts.check()
    return Checkpoint(
        kind='own',
        path=folder,
        config=replace(config, views=views),
        processing=Processing(
            _normalizer(path, stats, config, modes, relative, facts), own_prompt(in_prompt)
        ),
        weights=weights,
        tokenizer_path=folder / TOKENIZER,
        slots=config.views,
        n_action_steps=config.chunk_size,
        fps=fps,
        state_names=names['state'],
        action_names=names['action'],
        max_action_prefix=int(weights.metadata.get(MAX_ACTION_PREFIX, 0)),
        max_memory_rows=int(weights.metadata.get(MAX_MEMORY_ROWS, 0)),
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
    """Replace the folder atomically. card: further metadata, such as the origin of the weights."""
    with storage.replaced_folder(Path(path)) as new:
        tokenizer.save(new / TOKENIZER)
        (new / STATISTICS).write_text(json.dumps(to_json(normalizer), indent=1))
        about = {CONFIG: json.dumps(asdict(config)), WORDS: _digest(new / TOKENIZER)}
        write_weights(new / 'model.safetensors', state, about | dict(card or {}))


def to_json(normalizer: Normalizer) -> dict:
    """Return the contents of norm_stats.json."""
    scales = {'state': normalizer.state_scale, 'actions': normalizer.action_scale}
    stats = {
        part: {name: scale.statistics[name].tolist() for name in READS[scale.mode]}
        for part, scale in scales.items()
    }
    return {'norm_stats': stats, 'delta': normalizer.relative.tolist()}


def build_config(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return a config of its fields. Raises ValueError that names missing and unknown fields."""
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    odd = {'lacks': needed - {*values}, 'has unknown': {*values} - names}
    if any(odd.values()):
        what = (f'{verb} {", ".join(sorted(some))}' for verb, some in odd.items() if some)
        raise ValueError(f'{kind.__name__} {", ".join(what)}')
    given: Any = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
    return kind(**given)


def dimensions(config: Config) -> dict[str, object]:
    """Return the fields of a config, flat, without those that may differ."""
    flat: dict[str, object] = {}
    for name, value in asdict(config).items():
        if isinstance(value, dict):
            flat |= {f'{name}.{field}': each for field, each in value.items()}
        elif name not in FREE:
            flat[name] = value
    return flat


def check_same(path: Path, found: Config, wanted: Config) -> None:
    """Raise CheckpointError that names the first dimension in which two configs differ."""
    there = dimensions(found)
    for name, value in dimensions(wanted).items():
        if there[name] != value:
            raise CheckpointError(f'{path}: {name} is {there[name]}, the model has {value}')


def _normalizer(
    path: Path,
    stats: dict,
    config: ModelConfig,
    modes: Mapping[str, str],
    relative: Sequence[bool],
    facts: Facts,
) -> Normalizer:
    if len(relative) != config.action_dim:
        raise CheckpointError(
            f'{path}: delta is [{len(relative)}], the model has [{config.action_dim}]'
        )
    if any(relative[config.state_dim :]):
        raise CheckpointError(f'{path}: delta beyond the {config.state_dim} joints of the state')
    entries = stats.get('norm_stats', stats)
    per_step = (config.chunk_size, config.action_dim)
    shapes = {'state': ((config.state_dim,),), 'actions': ((config.action_dim,), per_step)}
    scales = []
    for part, shape in shapes.items():
        name = part.removesuffix('s')
        mode, units = modes[name], facts.units(name, shape[0][0])
        found = statistics.pick(f'{path}: {part}', entries.get(part) or {}, mode, *shape)
        scales.append(Scaling.own(mode, found, units))
    return Normalizer(scales[0], scales[1], np.array(relative, bool))


def _relative(path: Path, stats: dict) -> tuple[bool, ...] | None:
    delta = stats.get('delta')
    if delta is None:
        return None
    if not isinstance(delta, list) or not all(isinstance(one, bool) for one in delta):
        raise CheckpointError(f'{path}: delta must be a list of booleans (got {delta!r})')
    return tuple(delta)


def _says(weights: Weights) -> tuple[str, ...] | None:
    if SAYS not in weights.metadata:
        return None
    try:
        prompts = json.loads(weights.metadata[SAYS])
    except ValueError as error:
        raise CheckpointError(f'{weights.path}: {SAYS} must be a list: {error}') from error
    if not isinstance(prompts, list) or not all(isinstance(one, str) for one in prompts):
        raise CheckpointError(
            f'{weights.path}: {SAYS} must be a list of prompts (got {prompts!r})'
        )
    return tuple(prompts)


def _parse_config(weights: Weights) -> ModelConfig:
    parts = dict(vision=VisionConfig, backbone=BackboneConfig, expert=ExpertConfig)
    try:
        values = json.loads(weights.metadata[CONFIG])
        values |= {part: build_config(kind, values[part]) for part, kind in parts.items()}
        return build_config(ModelConfig, values)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f'{weights.path}: its config is not a model config of this package: {error}'
        ) from error


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_words(weights: Weights, path: Path) -> None:
    if WORDS in weights.metadata and path.is_file() and weights.metadata[WORDS] != _digest(path):
        raise CheckpointError(
            f'{weights.path}: {path.name} is not the one that these weights were trained with'
        )
