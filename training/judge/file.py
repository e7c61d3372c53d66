"""Judges on disk: one .safetensors file each, with the dimensions in its metadata.

This module knows dimensions and names, not the task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from embodied_kv import storage
from embodied_kv.config import BackboneConfig
from embodied_kv.model.planner import Planner, PlannerConfig
from embodied_kv.model.planner_checkpoint import parse_config
from embodied_kv.model.weights import CheckpointError, Weights, fill, write_weights
from training.judge.chains import SEGMENTS, VOCABULARY

CONFIG = 'embodied_kv.judge'
BUNDLED = Path(__file__).resolve().parents[2] / 'benchmarks/assets/judge'
SEEDS = (0, 1, 2)  # of the judges that come with the package

# More than half of a head's rotary angles turn by less than 1 rad over a prompt, so that names are
# found at any position.
JUDGE = PlannerConfig(
    'judge',
    BackboneConfig(
        width=64,
        layers=4,
        heads=2,
        kv_heads=2,
        head_dim=32,
        mlp=72,
        vocab_size=VOCABULARY,
        rope_theta=1_000_000.0,
    ),
    max_tokens=2 * SEGMENTS[1] + 4,  # <bos>, <ask>, key, answer
)


def save_judge(
    path: Path, state: Mapping[str, Tensor], config: PlannerConfig, card: Mapping[str, str]
) -> None:
    """Save a judge in bfloat16. card: further metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    halves = {name: value.bfloat16() for name, value in state.items()}
    with storage.replaced(path) as new:
        write_weights(new, halves, {CONFIG: json.dumps(asdict(config)), **card})


def load_judge(path: Path) -> Planner:
    """Return a judge in float32 without gradients. Raises CheckpointError for other files."""
    weights = Weights(path)
    try:
        config = parse_config(weights.metadata[CONFIG])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f'{path} does not say the dimensions of a judge') from error
    model = Planner.empty(config, 'cpu')
    fill(model, weights, config)
    return model


def bundled_judge(seed: int) -> Path:
    """Return the file of a judge in the package. Raises ValueError if there is none."""
    path = BUNDLED / f'{seed}.safetensors'
    if not path.is_file():
        raise ValueError(
            f'no judge of seed {seed} comes with this package: train one with '
            f'`python -m training.judge --seed {seed} --out {path}`'
        )
    return path
