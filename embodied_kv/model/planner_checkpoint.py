"""A planner on disk: one safetensors file, with its dimensions and their digest in the metadata.

Knows dimensions and names of parameters. Does not know what the planner's tokens mean. Nothing is
unpickled; a file of other dimensions is refused by the first that differs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from embodied_kv.config import BackboneConfig, PlannerConfig
from embodied_kv.model.checkpoint import CONFIG, FREE
from embodied_kv.model.planner import Planner
from embodied_kv.model.weights import CheckpointError, Weights, fill

DIGEST = 'embodied_kv.planner'


def planner_digest(config: PlannerConfig) -> str:
    """16 hex digits that change with any dimension; name and dtype are none."""
    dimensions = dict(_dimensions(asdict(config)))
    return sha256(json.dumps(dimensions, sort_keys=True).encode()).hexdigest()[:16]


def save_planner(
    path: str | Path,
    state: Mapping[str, Tensor],
    config: PlannerConfig,
    card: Mapping[str, str] | None = None,
) -> None:
    """Write the file under a temporary name, synced, then renamed over the old one.

    card: what else the metadata should say, such as what the weights are made of and made for.
    """
    path = Path(path)
    about = {CONFIG: json.dumps(asdict(config)), DIGEST: planner_digest(config)}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        save_file(tensors, temporary, {'format': 'pt', **about, **(card or {})})
        with temporary.open('rb') as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_planner_config(path: str | Path) -> PlannerConfig:
    """The dimensions that a planner's file carries. Raises CheckpointError."""
    return _config(Weights(path))


def load_planner(path: str | Path, config: PlannerConfig, device: str = 'cpu') -> Planner:
    """The planner in a file of exactly these dimensions, in `config.dtype`; no gradients.

    Raises CheckpointError that names the first dimension, or the parameters, that differ.
    """
    weights = Weights(path)
    there = dict(_dimensions(asdict(_config(weights))))
    for name, value in _dimensions(asdict(config)):
        if there[name] != value:
            raise CheckpointError(f'{path}: {name} is {there[name]}, the planner has {value}')
    with torch.device('meta'):
        planner = Planner(config)
    planner = planner.to(getattr(torch, config.dtype)).to_empty(device=device)
    fill(planner, weights, config)
    return planner.requires_grad_(False).eval()


def _config(weights: Weights) -> PlannerConfig:
    if CONFIG not in weights.metadata:
        raise CheckpointError(f'{weights.path} does not say its dimensions: no planner of ours')
    try:
        fields = json.loads(weights.metadata[CONFIG])
        config = PlannerConfig(**fields | {'backbone': BackboneConfig(**fields['backbone'])})
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{weights.path}: its config is no planner: {error}') from error
    if weights.metadata.get(DIGEST) != planner_digest(config):
        raise CheckpointError(f'{weights.path}: its dimensions are not those it was saved with')
    return config


def _dimensions(fields: dict, prefix: str = '') -> Iterator[tuple[str, object]]:
    """Fields of a config, flat; those that may differ are left out."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _dimensions(value, f'{name}.')
        elif name not in FREE:
            yield prefix + name, value
