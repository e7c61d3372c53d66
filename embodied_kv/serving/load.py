"""The policy that a contract, a preset and a checkpoint name, by word.

Knows what a user may leave out. Does not know nodes or commands, which ask for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from embodied_kv.config import UNTRAINED, preset
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import bundled
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
    """Opened and loaded, for the device and in the dtype that `config` says.

    name: of a preset, '' for the dimensions that the checkpoint says, or the smallest preset for
    'random'. checkpoint: a path, 'random', or '' for the preset's own. say, warn: take a line for
    the user.

    Raises ValueError, CheckpointError, OSError.
    """
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"engine.device '{config.device}' cannot be used: {error}") from error
    if not checkpoint and not name:
        raise ValueError(
            'parameters checkpoint and preset are empty: name a folder of weights, or the preset '
            'whose own come with the package'
        )
    if checkpoint == 'random':
        name = name or UNTRAINED
        warn(f'weights of {name} are random: the robot moves, but to no purpose')
        model = served(embodiment.adapted(preset(name)), config.device, config.dtype, say)
        return Policy.random(model, config.seed, config.device)
    path = checkpoint or str(bundled(name))
    found = open_checkpoint(path, embodiment.declared, preset(name) if name else None)
    model = served(found.config, config.device, config.dtype, say)
    return found.load(config.device, model.dtype)
