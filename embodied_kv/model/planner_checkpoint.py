"""Planner checkpoints: a folder with model.safetensors and tokenizer.json.

The metadata of our weights has their dimensions, a digest of the dimensions, and a digest of the
tokenizer; `huggingface_planner` reads the other format. Nothing is unpickled, and parts that do
not match are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from embodied_kv import storage
from embodied_kv.config import BackboneConfig
from embodied_kv.model import huggingface_planner
from embodied_kv.model.checkpoints.own import (
    ASSETS,
    CONFIG,
    WORDS,
    build_config,
    check_same,
    dimensions,
)
from embodied_kv.model.dtype import served
from embodied_kv.model.planner import PLANNER_MISSIONS, Planner, PlannerConfig
from embodied_kv.model.planner_prompts import HEAD, PromptFrame
from embodied_kv.model.random import init_random
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, Weights, fill, write_weights

DIGEST = 'embodied_kv.planner'
# Fields that the files of older planners lack, with their value for such a planner.
LATER = {
    f'backbone.{field.name}': field.default
    for field in fields(BackboneConfig)
    if field.default is not MISSING and field.name not in ('rope_theta', 'eps')
}


@dataclass(frozen=True, eq=False)
class LoadedPlanner:
    """A planner with its tokenizer and the frame of its prompts.

    fingerprint: 32 hex digits that change with dimensions, weights, dtype or tokenizer. KV of a
    planner with another fingerprint is invalid for this one.
    """

    model: Planner
    tokenizer: Tokenizer
    frame: PromptFrame
    fingerprint: str

    @property
    def config(self) -> PlannerConfig:
        return self.model.config


def load_planner(
    path: str | Path, config: PlannerConfig | None = None, device: str = 'cpu'
) -> LoadedPlanner:
    """Return the planner in a folder; no gradients.

    path: a folder of this package or, without a required config, of Hugging Face. config: the
    required dimensions, and the dtype to use; None for those of the folder. A planner of Hugging
    Face computes in float32 on a CPU that does not multiply bfloat16. Raises CheckpointError for a
    part that is missing, damaged, or of another planner.
    """
    path = Path(path)
    if config is None and huggingface_planner.is_huggingface(path):
        return _load_huggingface(path, device)
    weights = Weights(path)
    found = _parse(weights)
    config = config or found
    check_same(path, found, config)
    folder = path if path.is_dir() else path.parent
    try:
        tokenizer = Tokenizer.load(folder, limit=config.backbone.vocab_size)
    except ValueError as error:
        raise CheckpointError(f'{path}: {error}') from error
    if weights.metadata.get(WORDS) != _words_digest(tokenizer):
        raise CheckpointError(
            f'{folder}: tokenizer.json is not the one that these weights were trained with'
        )
    model = Planner.empty(config, device)
    fill(model, weights, config)
    return _loaded(model, tokenizer)


def without_missions(path: str | Path) -> str:
    """Return why a planner cannot execute missions, by its config, or ''.

    Reads no weights. Raises CheckpointError where the path is no planner.
    """
    if huggingface_planner.is_huggingface(Path(path)):
        return ''  # its prompts explain what a mission is
    name = _parse(Weights(path)).name
    if name == PLANNER_MISSIONS.name:
        return ''
    return f'the planner {name} was not trained for missions'


def random_planner(
    config: PlannerConfig,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    device: str = 'cpu',
) -> LoadedPlanner:
    """Return a planner with seeded random weights. tokenizer: None for the byte tokenizer.

    Raises:
        ValueError: The tokenizer has more tokens than the planner embeds.
    """
    tokenizer = tokenizer or Tokenizer.bytes()
    if tokenizer.vocab_size > config.backbone.vocab_size:
        raise ValueError(
            f'the tokenizer has {tokenizer.vocab_size} tokens, the planner embeds '
            f'{config.backbone.vocab_size}'
        )
    model = Planner.empty(config, device)
    init_random(model, seed)
    return _loaded(model, tokenizer)


def bundled_planner(name: str) -> Path:
    """Return the folder of a planner of this package.

    Raises:
        ValueError: The package has no planner of that name.
    """
    path = ASSETS / name
    if not (path / 'model.safetensors').is_file():
        raise ValueError(
            f"this package has no planner '{name}'; train one with `python -m training.planner` "
            'and pass its folder'
        )
    return path


def save_planner(
    path: str | Path,
    state: Mapping[str, Tensor],
    config: PlannerConfig,
    tokenizer: Tokenizer,
    card: Mapping[str, str] | None = None,
) -> None:
    """Replace the folder atomically. card: further metadata, such as the origin of the weights."""
    about = {
        CONFIG: json.dumps(asdict(config)),
        DIGEST: planner_digest(config),
        WORDS: _words_digest(tokenizer),
    }
    with storage.replaced_folder(Path(path)) as new:
        tokenizer.save(new / 'tokenizer.json')
        write_weights(new / 'model.safetensors', state, about | dict(card or {}))


def planner_digest(config: PlannerConfig) -> str:
    """Return 16 hex digits that change with any dimension, not with name and dtype."""
    found = {name: value for name, value in dimensions(config).items() if LATER.get(name) != value}
    return sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def parse_config(text: str) -> PlannerConfig:
    """Return the config of a JSON text. Raises ValueError, KeyError or TypeError."""
    values = json.loads(text)
    backbone = build_config(BackboneConfig, values['backbone'])
    return build_config(PlannerConfig, values | dict(backbone=backbone))


def _load_huggingface(path: Path, device: str) -> LoadedPlanner:
    config = served(huggingface_planner.read_config(path), device)
    tokenizer, frame = huggingface_planner.read_prompts(path, config)
    model = Planner.empty(config, device)
    fill(model, Weights(path), config, huggingface_planner.naming(config))
    huggingface_planner.scale_queries(model, path)
    return _loaded(model, tokenizer, frame)


def _loaded(
    model: Planner, tokenizer: Tokenizer, frame: PromptFrame | None = None
) -> LoadedPlanner:
    """Return the planner with its fingerprint. frame: None for that of our own planners."""
    own = PromptFrame((*tokenizer.encode(HEAD, bos=True),), (), frozenset({tokenizer.eos}))
    digest = sha256(f'{planner_digest(model.config)} {_words_digest(tokenizer)}'.encode())
    for name, tensor in model.state_dict().items():
        digest.update(f'{name} {tensor.dtype}'.encode())
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy())
    return LoadedPlanner(model, tokenizer, frame or own, digest.hexdigest()[:32])


def _parse(weights: Weights) -> PlannerConfig:
    if CONFIG not in weights.metadata:
        raise CheckpointError(f'{weights.path} must have dimensions in its metadata (got none)')
    try:
        config = parse_config(weights.metadata[CONFIG])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{weights.path}: its config is no planner: {error}') from error
    if weights.metadata.get(DIGEST) != planner_digest(config):
        raise CheckpointError(f'{weights.path}: its dimensions are not those it was saved with')
    return config


def _words_digest(tokenizer: Tokenizer) -> str:
    return sha256(tokenizer.backend.to_str().encode()).hexdigest()
