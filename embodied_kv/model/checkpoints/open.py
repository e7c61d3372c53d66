"""The one way to open a checkpoint: whose folder it is, and what it says.

Knows what tells the three kinds apart; what is in them, each kind knows itself.
"""

from __future__ import annotations

from pathlib import Path

from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoints import lerobot, lora, openpi, own
from embodied_kv.model.checkpoints.checkpoint import Checkpoint
from embodied_kv.model.checkpoints.lerobot_folder import is_lerobot
from embodied_kv.model.weights import CheckpointError, Weights
from embodied_kv.robots.contract import Declared

WEIGHTS = 'model.safetensors'


def open_checkpoint(
    path: str | Path, declared: Declared | None = None, config: ModelConfig | None = None
) -> Checkpoint:
    """What a checkpoint is; its weights are read by `Checkpoint.load`.

    path: a folder of ours, of LeRobot's or of openpi's, its model.safetensors, or a file of ours.
    declared: what the robot's contract says of it. config: of ours, the dimensions that it must
    have; of the others, the widths, which their files do not say (None: those of PI05).

    Raises CheckpointError, in words for the user: what is missing, damaged or not supported, what
    neither files nor contract say, and where the two differ.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f'{path} does not exist')
    folder = path.parent if path.name == WEIGHTS else path
    if folder.is_dir() and is_lerobot(folder):
        return lerobot.describe(folder, declared, config)
    if folder.is_dir() and openpi.is_openpi(folder):
        return openpi.describe(folder, declared, config)
    if (folder / lora.PEFT_CONFIG).is_file():
        raise CheckpointError(
            f'{folder} is an adapter without its processors: copy config.json, both processor '
            'files and what they name from its training run'
        )
    weights = Weights(path)
    if own.CONFIG in weights.metadata:
        return own.describe(weights, declared, config)
    raise CheckpointError(
        f'{path} is no checkpoint that can be recognised: there is neither our metadata in its '
        "weights, nor LeRobot's config.json and policy_preprocessor.json, nor openpi's "
        'assets/<asset_id>/norm_stats.json'
    )
