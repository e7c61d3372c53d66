"""A planner on disk: a folder of model.safetensors and tokenizer.json.

The metadata of the weights carries their dimensions, the digest of these, and the digest of the
tokenizer. Knows dimensions and names of parameters; does not know prompts. Nothing is unpickled,
and what does not belong together is refused by the first thing that differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from embodied_kv import storage
from embodied_kv.config import BackboneConfig
from embodied_kv.model.checkpoints.own import ASSETS, CONFIG, FREE, WORDS, build_config
from embodied_kv.model.planner import Planner
from embodied_kv.model.planner_config import PLANNER_MISSIONS, PlannerConfig
from embodied_kv.model.random import init_random
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, Weights, fill, write_weights

DIGEST = 'embodied_kv.planner'


@dataclass(frozen=True, eq=False)
class LoadedPlanner:
    """A planner, and its tokenizer.

    fingerprint: 32 hex digits that change with dimensions, weights, dtype or tokenizer: KV that
    another one has computed means nothing to this one.
    """

    model: Planner
    tokenizer: Tokenizer
    fingerprint: str

    @property
    def config(self) -> PlannerConfig:
        return self.model.config


def load_planner(
    path: str | Path, config: PlannerConfig | None = None, device: str = 'cpu'
) -> LoadedPlanner:
    """The planner in a folder, in the dtype of its config; no gradients.

    config: what it has to be, name and dtype aside; its dtype is the one that is used. None takes
    what is there. Raises CheckpointError that names the first dimension that differs, or what is
    missing, damaged or of another tokenizer.
    """
    path = Path(path)
    weights = Weights(path)
    there = _parse(weights)
    if config is None:
        config = there
    for name, value in _dimensions(config):
        found = dict(_dimensions(there))[name]
        if found != value:
            raise CheckpointError(f'{path}: {name} is {found}, the planner has {value}')
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
    """Why a planner cannot do missions, as its own config says; '' where it was taught them.

    Reads no weights. Raises CheckpointError for what is no planner.
    """
    name = _parse(Weights(path)).name
    return '' if name == PLANNER_MISSIONS.name else f'the planner {name} was not taught missions'


def random_planner(
    config: PlannerConfig,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    device: str = 'cpu',
) -> LoadedPlanner:
    """Seeded random weights; tokenizer: None for the built-in one of bytes.

    Raises ValueError for a tokenizer with more tokens than the planner embeds.
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
    """The folder of a planner that comes with the package.

    Raises ValueError where there is none, with the command that trains it.
    """
    path = ASSETS / name
    if not (path / 'model.safetensors').is_file():
        raise ValueError(
            f"no planner '{name}' comes with this package: train one with "
            '`python -m training.planner`, and name its folder'
        )
    return path


def save_planner(
    path: str | Path,
    state: Mapping[str, Tensor],
    config: PlannerConfig,
    tokenizer: Tokenizer,
    card: Mapping[str, str] | None = None,
) -> None:
    """Write the folder, in place of the old one: whole, or not at all.

    card: what else the metadata should say, such as what the weights are made of and made for.
    """
    about = {
        CONFIG: json.dumps(asdict(config)),
        DIGEST: planner_digest(config),
        WORDS: _words_digest(tokenizer),
    }
    with storage.replaced_folder(Path(path)) as new:
        tokenizer.save(new / 'tokenizer.json')
        write_weights(new / 'model.safetensors', state, about | dict(card or {}))


def planner_digest(config: PlannerConfig) -> str:
    """16 hex digits that change with any dimension; name and dtype are none."""
    dimensions = dict(_dimensions(config))
    return sha256(json.dumps(dimensions, sort_keys=True).encode()).hexdigest()[:16]


def _loaded(model: Planner, tokenizer: Tokenizer) -> LoadedPlanner:
    digest = sha256(f'{planner_digest(model.config)} {_words_digest(tokenizer)}'.encode())
    for name, tensor in model.state_dict().items():
        digest.update(f'{name} {tensor.dtype}'.encode())
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy())
    return LoadedPlanner(model, tokenizer, digest.hexdigest()[:32])


def parse_config(text: str) -> PlannerConfig:
    """From the JSON of `asdict`. Raises ValueError, KeyError or TypeError for any other."""
    values = json.loads(text)
    backbone = build_config(BackboneConfig, values['backbone'])
    return build_config(PlannerConfig, values | dict(backbone=backbone))


def _parse(weights: Weights) -> PlannerConfig:
    if CONFIG not in weights.metadata:
        raise CheckpointError(f'{weights.path} does not say its dimensions: no planner of ours')
    try:
        config = parse_config(weights.metadata[CONFIG])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{weights.path}: its config is no planner: {error}') from error
    if weights.metadata.get(DIGEST) != planner_digest(config):
        raise CheckpointError(f'{weights.path}: its dimensions are not those it was saved with')
    return config


def _dimensions(config: PlannerConfig) -> Iterator[tuple[str, object]]:
    """Fields of a config, flat; those that may differ are left out."""
    fields = asdict(config)
    for name, value in fields.pop('backbone').items():
        yield f'backbone.{name}', value
    yield from ((name, value) for name, value in fields.items() if name not in FREE)


def _words_digest(tokenizer: Tokenizer) -> str:
    return sha256(tokenizer.backend.to_str().encode()).hexdigest()
