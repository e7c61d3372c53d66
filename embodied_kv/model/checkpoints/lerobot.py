"""A policy of LeRobot's: its folder and the robot's contract, as one description.

Knows how LeRobot processes. What its files say, `lerobot_folder` knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from embodied_kv.config import PI05, ModelConfig
from embodied_kv.model.checkpoints.checkpoint import Checkpoint
from embodied_kv.model.checkpoints.facts import Facts
from embodied_kv.model.checkpoints.lerobot_folder import ACTION, EMPTY, STATE, LeRobotFolder
from embodied_kv.model.processing import images
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.processing.processing import Processing
from embodied_kv.model.processing.prompt import PromptStyle
from embodied_kv.robots.contract import Declared


def describe(
    folder: Path, declared: Declared | None, config: ModelConfig | None = None
) -> Checkpoint:
    """Of a folder. config: widths other than PI05's. Raises CheckpointError."""
    files, facts = LeRobotFolder.read(folder), Facts(folder, declared)
    settings = files.settings
    dims = {
        'state': files.dims('input_features', STATE),
        'action': files.dims('output_features', ACTION),
    }
    names = {
        'state': facts.settle('state_names', needed=False),
        'action': facts.settle('action_names', files.action_names(), needed=False),
    }
    for part, count in dims.items():
        facts.dims(part, names[part], count)
    relative = facts.settle('relative', files.relative(dims['action']))
    if any(relative[dims['state'] :]):
        files.refuse(f'relative actions beyond the {dims["state"]} dims of the state')
    modes = facts.modes(files.modes())
    for name, value in (('state_in_prompt', True), ('resize', 'bilinear'), ('conversion', 'none')):
        facts.settle(name, value)
    # The field is younger than the last code that padded.
    old = facts.settle('lerobot_before_0_5', False if 'use_relative_actions' in settings else None)
    chunk_size, fps = facts.settle('chunk_size', settings.get('chunk_size')), facts.settle('fps')
    slots = files.views()
    views = facts.views(tuple(slot for slot in slots if not slot.startswith(EMPTY)))
    facts.check()
    return Checkpoint(
        kind='lerobot',
        path=folder,
        config=replace(
            _config(files, config or PI05),
            views=views,
            chunk_size=chunk_size,
            state_dim=dims['state'],
            action_dim=dims['action'],
            action_dt=1 / fps,
        ),
        processing=_processing(files, modes, dims, relative, old),
        weights=files.weights(),
        tokenizer_path=files.tokenizer(),
        slots=slots,
        n_action_steps=settings.get('n_action_steps', chunk_size),
        fps=fps,
        state_names=names['state'],
        action_names=names['action'],
        euler_steps=settings.get('num_inference_steps', 10),
        most_given=settings.get('rtc_training_max_delay', 0),
        renames=files.before['rename_observations_processor'].settings.get('rename_map') or {},
    )


def _config(files: LeRobotFolder, base: ModelConfig) -> ModelConfig:
    """What config.json says of the network, in widths that it does not say."""
    settings, size = files.settings, [base.vision.image_size] * 2
    if settings.get('image_resolution', size) != size:
        files.refuse(f'not supported: image_resolution = {settings["image_resolution"]}')
    return replace(
        base,
        expert=replace(
            base.expert,
            time_min_period=settings.get('min_period', base.expert.time_min_period),
            time_max_period=settings.get('max_period', base.expert.time_max_period),
        ),
        max_text=files.max_text(),
        padded_action_dim=settings.get('max_action_dim', base.padded_action_dim),
        dtype=settings.get('dtype', base.dtype),
    )


def _processing(
    files: LeRobotFolder,
    modes: Mapping[str, str],
    dims: Mapping[str, int],
    relative: Sequence[bool],
    old: bool,
) -> Processing:
    """old: as LeRobot did before 0.5.0, which padded the state, and images with -3."""
    normalizer = Normalizer(
        files.scale(STATE, modes['state'], dims['state']),
        files.scale(ACTION, modes['action'], dims['action']),
        np.array(relative, bool),
    )
    prompt = PromptStyle(padded_dims=files.settings.get('max_state_dim', 32) if old else 0)
    resize = images.BILINEAR_BEFORE_0_5 if old else images.BILINEAR
    return Processing(normalizer, prompt, resize)
