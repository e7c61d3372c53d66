"""Load the policy that a contract, a preset and a checkpoint name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from embodied_kv.config import UNTRAINED, preset
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import bundled
from embodied_kv.model.data_range import warnings
from embodied_kv.model.dtype import served
from embodied_kv.model.policy import Policy
from embodied_kv.robots.embodiment import Embodiment

Say = Callable[[str], object]


def load_policy(
    embodiment: Embodiment,
    name: str,
    checkpoint: str,
    config: EngineConfig,
    say: Say,
    warn: Say,
) -> Policy:
    """Return the loaded policy, on the device and in the dtype of `config`.

    Args:
        embodiment: The robot by its contract.
        name: A preset; '' for the dimensions of the checkpoint, or of UNTRAINED for 'random'.
        checkpoint: A path, owner/name@revision of the Hugging Face hub, 'random', or '' for the
            bundled weights of the preset.
        config: The engine's configuration.
        say: Receives an informative line for the user.
        warn: Receives a warning for the user.

    Raises:
        ValueError, CheckpointError, OSError: The policy cannot be loaded.
    """
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"engine.device must be available (got '{config.device}': {error})"
        ) from error
    if not checkpoint and not name:
        raise ValueError(
            'checkpoint or preset must be set (got two empty values); name a folder of weights, '
            'or a preset with bundled weights'
        )
    if checkpoint == 'random':
        name = name or UNTRAINED
        warn(f'weights of {name} are random: the robot moves without purpose')
        model = served(embodiment.adapted(preset(name)), config.device, config.dtype, say)
        return Policy.random(model, config.seed, config.device)
    path = checkpoint or str(bundled(name))
    found = open_checkpoint(path, embodiment.declared, preset(name) if name else None, say)
    for line in warnings(embodiment, found):
        warn(line)
    if found.euler_steps not in (EngineConfig.euler_steps, config.euler_steps):
        warn(
            f'the checkpoint was made for {found.euler_steps} Euler steps, and engine.euler_steps '
            f'is {config.euler_steps}: its chunks may differ from those of its authors'
        )
    model = served(found.config, config.device, config.dtype, say)
    return found.load(config.device, model.dtype)
