"""Opening of a checkpoint of any kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoints import hub, lerobot, lora, openpi, own
from embodied_kv.model.checkpoints.checkpoint import Checkpoint
from embodied_kv.model.weights import CheckpointError, Weights
from embodied_kv.robots.declared import Declared

WEIGHTS = 'model.safetensors'


def open_checkpoint(
    path: str | Path,
    declared: Declared | None = None,
    config: ModelConfig | None = None,
    say: hub.Say = hub.silent,
) -> Checkpoint:
    """Return the description of a checkpoint; `Checkpoint.load` reads its weights.

    Args:
        path: A folder of this project, LeRobot or openpi, its model.safetensors, or a file of this
            project; else owner/name@revision of a repository of the Hugging Face hub.
        declared: The facts in the robot's contract.
        config: The required dimensions of a checkpoint of this project; the widths of another one,
            which its files do not state (None: those of PI05).
        say: Receives lines for the user about what is fetched.

    Raises:
        CheckpointError: A part is missing, damaged or not supported, or files and contract differ.
    """
    located = hub.locate(path, say)
    return replace(_described(located.path, declared, config, say), source=located.source)


def _described(
    path: Path, declared: Declared | None, config: ModelConfig | None, say: hub.Say
) -> Checkpoint:
    if not path.exists():
        raise CheckpointError(f'{path} does not exist')
    folder = path.parent if path.name == WEIGHTS else path
    if folder.is_dir() and lerobot.is_lerobot(folder):
        return lerobot.describe(folder, declared, config, say)
    if folder.is_dir() and openpi.is_openpi(folder):
        return openpi.describe(folder, declared, config)
    if (folder / lora.PEFT_CONFIG).is_file():
        raise CheckpointError(
            f'{folder} is an adapter without its processors: copy config.json, both processor '
            'files and the files that they name from its training run'
        )
    weights = Weights(path)
    if own.CONFIG in weights.metadata:
        return own.describe(weights, declared, config)
    raise CheckpointError(
        f'{path} is no checkpoint that can be recognised: it has neither metadata of embodied_kv '
        'in its weights, nor config.json and policy_preprocessor.json of LeRobot, nor '
        'assets/<asset_id>/norm_stats.json of openpi'
    )
