"""The user's own LeRobot or openpi, asked for the same observation that ours answers.

Knows which calls of theirs give which quantity. Imports them only here, when asked: neither is a
dependency of this suite. Does not know ours.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_kv.model.checkpoints.lora import PEFT_CONFIG
from embodied_kv.model.parity.recorded import OPENPI_CAMERAS, openpi_facts
from embodied_kv.model.weights import CheckpointError, Weights
from embodied_kv.robots.contract import Declared

ANY_RATE = 1.0  # 1/s: nothing that is compared depends on it
STEPS = 10


@dataclass(frozen=True, eq=False)
class Asked:
    """One observation. images: view -> uint8 [H, W, 3]. noise: float32 [1, chunk, padded]."""

    images: Mapping[str, NDArray[np.uint8]]
    state: NDArray[np.float64]
    instruction: str
    noise: Tensor


Answer = Mapping[str, NDArray]  # image.<view>, state, tokens, chunk, actions


@dataclass(frozen=True, eq=False)
class Theirs:
    """name: of the project, with its version. declared: what its code says of the robot.

    times: of the steps, float32 [steps]. answer: raises what the project raises.
    """

    name: str
    declared: Declared
    times: Tensor
    answer: Callable[[Asked], Answer]


def lerobot(folder: Path) -> Theirs:
    """Raises CheckpointError where it is not installed, or loaded other weights."""
    if (folder / PEFT_CONFIG).is_file():
        raise CheckpointError('an adapter: save the policy with the adapter merged to compare it')
    factory = _load('lerobot', 'lerobot.policies.factory')
    utils = _load('lerobot', 'lerobot.policies.utils')
    version = getattr(_load('lerobot', 'lerobot'), '__version__', '?')
    policy = factory.get_policy_class('pi05').from_pretrained(str(folder))
    _check_loaded(folder, policy)
    policy = policy.float().to('cpu').eval()
    on_cpu = {'device_processor': {'device': 'cpu'}}
    before, after = factory.make_pre_post_processors(
        policy.config,
        pretrained_path=str(folder),
        preprocessor_overrides=on_cpu,
        postprocessor_overrides=on_cpu,
    )

    def answer(asked: Asked) -> Answer:
        raw = {**asked.images, 'observation.state': asked.state.astype(np.float32)}
        raw = utils.prepare_observation_for_inference(raw, torch.device('cpu'), asked.instruction)
        batch = before(raw)
        pictures, _ = policy._preprocess_images(batch)
        seen = [view for view in policy.config.image_features if view in asked.images]
        chunk = policy.predict_action_chunk(batch, noise=asked.noise.clone())
        tokens, mask = (
            batch[f'observation.language.{name}'][0] for name in ('tokens', 'attention_mask')
        )
        found = {f'image.{view}': p[0] for view, p in zip(seen, pictures, strict=False)}
        found |= {
            'state': batch['observation.state'][0],
            'tokens': tokens[mask.bool()],
            'chunk': chunk[0],
            'actions': after(chunk)[0],
        }
        return {name: value.float().cpu().numpy() for name, value in found.items()}

    old = tuple(map(int, version.split('.')[:2])) < (0, 5) if version[0].isdigit() else False
    steps = policy.config.num_inference_steps
    times = torch.tensor([1.0 + step * (-1.0 / steps) for step in range(steps)])
    declared = Declared(fps=ANY_RATE, lerobot_before_0_5=old)
    return Theirs(f'lerobot {version}', declared, times, answer)


def openpi(folder: Path, config: str | None) -> Theirs:
    """config: name of the train config that its code knows. Raises CheckpointError."""
    if config is None:
        raise CheckpointError('openpi keeps the robot in code: name its train config, --config')
    configs = _load('openpi', 'openpi.training.config')
    create = _load('openpi', 'openpi.policies.policy_config').create_trained_policy
    try:
        train = configs.get_config(config)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    model = _load('openpi', 'openpi.models_pytorch.gemma_pytorch').PaliGemmaWithExpertModel
    # It rounds to bfloat16 whatever was saved, tables of positions too, which nothing undoes.
    with patch.object(model, 'to_bfloat16_for_selected_params', lambda made, *_: made.float()):
        policy = create(train, folder, pytorch_device='cpu')
    torch.set_float32_matmul_precision('highest')  # it has set 'high', which rounds products
    transforms = policy._input_transform.transforms
    facts = {
        'input_transforms': [{type(t).__name__: vars(t)} for t in transforms],
        **_dims(folder, {type(t).__name__ for t in transforms}),
    }
    cameras, declared = openpi_facts(facts)
    slots = {slot: camera for camera, slot in cameras.items()}
    robot = next(name for name in OPENPI_CAMERAS if OPENPI_CAMERAS[name] == cameras)

    def answer(asked: Asked) -> Answer:
        images = {slots[view]: image for view, image in asked.images.items()}
        raw, same = (
            _raw(robot, images, asked.state) | {'prompt': asked.instruction} for _ in range(2)
        )
        ready = policy._input_transform(same)  # which may change what it is given
        chunks: list[NDArray] = []
        finish = policy._output_transform

        def record(outputs: dict[str, Any]) -> dict[str, Any]:
            chunks.append(np.array(outputs['actions']))
            return finish(outputs)

        policy._output_transform = record
        try:
            actions = policy.infer(raw, noise=asked.noise.numpy())['actions']
        finally:
            policy._output_transform = finish
        pictures = ((slot, ready['image'][slot]) for slot in asked.images)
        mask = np.asarray(ready['tokenized_prompt_mask'], bool)
        found = {f'image.{s}': (p.astype(np.float32) / 255 * 2 - 1) for s, p in pictures}
        found = {name: p.transpose(2, 0, 1) for name, p in found.items()}
        state = np.asarray(ready['state'])[: len(asked.state)]
        tokens = np.asarray(ready['tokenized_prompt'])[mask]
        return found | dict(state=state, tokens=tokens, chunk=chunks[0], actions=actions)

    return Theirs(f'openpi, {config}', declared, _summed(STEPS), answer)


def _load(project: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CheckpointError(
            f'{project} cannot be imported ({error}): run this in the environment in which you '
            f'installed {project}, with this package on its path'
        ) from error


def _check_loaded(folder: Path, policy: torch.nn.Module) -> None:
    """LeRobot goes on with random weights, and a printed line, where it cannot load the file."""
    weights = Weights(folder)
    ours = {name.removeprefix('model.'): name for name in weights.names}
    theirs = policy.state_dict()['model.action_out_proj.weight']
    if not torch.equal(theirs.float().cpu(), weights.read(ours['action_out_proj.weight']).float()):
        raise CheckpointError(
            f'lerobot did not load the weights of {folder}: see the line that it printed'
        )


def _summed(steps: int) -> Tensor:
    """openpi's times: each is the last one plus a step, in float32."""
    times = [torch.tensor(1.0)]
    for _ in range(steps - 1):
        times.append(times[-1] + torch.tensor(-1.0 / steps))
    return torch.stack(times)


def _dims(folder: Path, transforms: set[str]) -> dict[str, int]:
    """Of state and action, which the robots' transforms have as numbers in their code."""
    known = {'LiberoInputs': (8, 7), 'DroidInputs': (8, 8), 'AlohaInputs': (14, 14)}
    for robot, (state, action) in known.items():
        if robot in transforms:
            return {'state_dim': state, 'action_dim_out': action}
    raise CheckpointError(f'{folder}: none of its transforms is known: {", ".join(known)}')


def _raw(robot: str, images: Mapping[str, NDArray], state: NDArray) -> dict[str, Any]:
    """An observation in the layout that a robot's transform takes."""
    if robot == 'AlohaInputs':
        pictures = {name: image.transpose(2, 0, 1) for name, image in images.items()}
        return {'images': pictures, 'state': state.copy()}
    if robot == 'DroidInputs':
        parts = {'joint_position': state[:7], 'gripper_position': state[7:]}
    else:
        parts = {'state': state}
    return {**images, **{f'observation/{name}': part.copy() for name, part in parts.items()}}
