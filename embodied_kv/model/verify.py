"""Compare a checkpoint in this package and in the user's installation of its training project.

`python -m embodied_kv.model.verify CHECKPOINT --against lerobot|openpi [--config NAME]` loads the
checkpoint twice, passes the same random observations and the same noise to both implementations,
in float32 on the CPU, and prints where and by how much they first differ. Both need memory: 13 GiB
each for a pi0.5. Exit status: 0 if they agree, 1 if they differ, 2 if they cannot be compared.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoints.hub import locate
from embodied_kv.model.checkpoints.lerobot import CONFIG
from embodied_kv.model.checkpoints.lora import PEFT_CONFIG
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.expert import flow_times
from embodied_kv.model.files import read_json
from embodied_kv.model.parity.cases import (
    ABOUT,
    ANY_RATE,
    OPENPI_CAMERAS,
    Quantity,
    openpi_facts,
    widths,
)
from embodied_kv.model.parity.replay import CHUNK, predict
from embodied_kv.model.policy import Policy
from embodied_kv.model.weights import CheckpointError, Weights
from embodied_kv.robots.declared import Declared

STAGES = ('image', 'state', 'tokens', 'chunk', 'actions')  # in the order of computation
SIZES = (480, 640), (240, 320), (121, 214)  # height, width of the pictures, by view
WORDS = (*'pick up the_red block and place it on the plate in front of you'.split(), '')
STEPS = 10


@dataclass(frozen=True, eq=False)
class Inputs:
    """One observation. images: uint8 [H, W, 3] by view. noise: float32 [1, chunk, padded]."""

    images: Mapping[str, NDArray[np.uint8]]
    state: NDArray[np.float64]
    instruction: str
    noise: Tensor


Answer = Mapping[str, NDArray]  # image.<view>, state, tokens, chunk, actions


@dataclass(frozen=True, eq=False)
class Reference:
    """The implementation of another project.

    name: project and version. declared: facts about the robot in its code. times: float32 [steps],
    of the Euler steps. answer: computes an observation; raises the errors of the project.
    """

    name: str
    declared: Declared
    times: Tensor
    answer: Callable[[Inputs], Answer]


def lerobot(folder: Path) -> Reference:
    """Return the user's LeRobot. Raises CheckpointError if it is missing or loads no weights."""
    if (folder / PEFT_CONFIG).is_file():
        raise CheckpointError(
            'the folder holds an adapter; save the policy with the adapter merged to compare it'
        )
    factory = _load('lerobot', 'lerobot.policies.factory')
    utils = _load('lerobot', 'lerobot.policies.utils')
    version = getattr(_load('lerobot', 'lerobot'), '__version__', '?')
    kind = read_json(folder / CONFIG).get('type')
    policy = factory.get_policy_class(kind).from_pretrained(str(folder))
    _check_loaded(folder, policy)
    policy = policy.float().to('cpu').eval()
    on_cpu = {'device_processor': {'device': 'cpu'}}
    before, after = factory.make_pre_post_processors(
        policy.config,
        pretrained_path=str(folder),
        preprocessor_overrides=on_cpu,
        postprocessor_overrides=on_cpu,
    )

    is_smolvla = kind == 'smolvla'
    preprocess = policy.prepare_images if is_smolvla else policy._preprocess_images

    def answer(given: Inputs) -> Answer:
        raw = {**given.images, 'observation.state': given.state.astype(np.float32)}
        raw = utils.prepare_observation_for_inference(raw, torch.device('cpu'), given.instruction)
        batch = before(raw)
        pictures, _ = preprocess(batch)
        seen = [view for view in policy.config.image_features if view in given.images]
        chunk = policy.predict_action_chunk(batch, noise=given.noise.clone())
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
    steps = policy.config.num_steps if is_smolvla else policy.config.num_inference_steps
    declared = Declared(fps=ANY_RATE, lerobot_before_0_5=old)
    return Reference(f'lerobot {version}', declared, flow_times(steps), answer)


def openpi(folder: Path, config: str | None) -> Reference:
    """Return the user's openpi. config: a name of its train configs. Raises CheckpointError."""
    if config is None:
        raise CheckpointError(
            'openpi describes the robot in code: name its train config with --config'
        )
    configs = _load('openpi', 'openpi.training.config')
    create = _load('openpi', 'openpi.policies.policy_config').create_trained_policy
    try:
        train = configs.get_config(config)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    model = _load('openpi', 'openpi.models_pytorch.gemma_pytorch').PaliGemmaWithExpertModel
    # openpi rounds all values to bfloat16, and position tables cannot be restored from that.
    with patch.object(model, 'to_bfloat16_for_selected_params', lambda made, *_: made.float()):
        policy = create(train, folder, pytorch_device='cpu')
    torch.set_float32_matmul_precision('highest')  # openpi sets 'high', which rounds products
    transforms = policy._input_transform.transforms
    facts = {
        'input_transforms': [{type(t).__name__: vars(t)} for t in transforms],
        **_dims(folder, {type(t).__name__ for t in transforms}),
    }
    cameras, declared = openpi_facts(facts)
    slots = {slot: camera for camera, slot in cameras.items()}
    robot = next(name for name in OPENPI_CAMERAS if OPENPI_CAMERAS[name] == cameras)

    def answer(given: Inputs) -> Answer:
        images = {slots[view]: image for view, image in given.images.items()}
        raw, same = (
            _raw(robot, images, given.state) | {'prompt': given.instruction} for _ in range(2)
        )
        ready = policy._input_transform(same)  # which may change its argument
        chunks: list[NDArray] = []
        finish = policy._output_transform

        def record(outputs: dict[str, Any]) -> dict[str, Any]:
            chunks.append(np.array(outputs['actions']))
            return finish(outputs)

        policy._output_transform = record
        try:
            actions = policy.infer(raw, noise=given.noise.numpy())['actions']
        finally:
            policy._output_transform = finish
        pictures = ((slot, ready['image'][slot]) for slot in given.images)
        mask = np.asarray(ready['tokenized_prompt_mask'], bool)
        found = {f'image.{s}': (p.astype(np.float32) / 255 * 2 - 1) for s, p in pictures}
        found = {name: p.transpose(2, 0, 1) for name, p in found.items()}
        state = np.asarray(ready['state'])[: len(given.state)]
        tokens = np.asarray(ready['tokenized_prompt'])[mask]
        return found | dict(state=state, tokens=tokens, chunk=chunks[0], actions=actions)

    return Reference(f'openpi, {config}', declared, flow_times(STEPS, is_summed=True), answer)


def _load(project: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CheckpointError(
            f'{project} cannot be imported ({error}): run this in the environment in which you '
            f'installed {project}, with this package on its path'
        ) from error


def _check_loaded(folder: Path, policy: torch.nn.Module) -> None:
    """Check the weights: LeRobot continues with random ones where it cannot load the file."""
    weights = Weights(folder)
    ours = {name.removeprefix('model.'): name for name in weights.names}
    loaded = policy.state_dict()['model.action_out_proj.weight']
    if not torch.equal(loaded.float().cpu(), weights.read(ours['action_out_proj.weight']).float()):
        raise CheckpointError(
            f'lerobot did not load the weights of {folder}: see the line that LeRobot printed'
        )


def _dims(folder: Path, transforms: set[str]) -> dict[str, int]:
    """Return the dims of state and action, which are constants in the code of openpi."""
    known = {'LiberoInputs': (8, 7), 'DroidInputs': (8, 8), 'AlohaInputs': (14, 14)}
    for robot, (state, action) in known.items():
        if robot in transforms:
            return {'state_dim': state, 'action_dim_out': action}
    raise CheckpointError(f'{folder}: none of its transforms is known: {", ".join(known)}')


def _raw(robot: str, images: Mapping[str, NDArray], state: NDArray) -> dict[str, Any]:
    """Return an observation in the layout of the robot's transform."""
    if robot == 'AlohaInputs':
        pictures = {name: image.transpose(2, 0, 1) for name, image in images.items()}
        return {'images': pictures, 'state': state.copy()}
    if robot == 'DroidInputs':
        parts = {'joint_position': state[:7], 'gripper_position': state[7:]}
    else:
        parts = {'state': state}
    return {**images, **{f'observation/{name}': part.copy() for name, part in parts.items()}}


def draw(policy: Policy, seed: int) -> Inputs:
    """Return a random observation: textured pictures, a state around its data, an instruction."""
    rng, c = np.random.default_rng(seed), policy.config
    images = {
        view: rng.integers(0, 256, (*SIZES[i % len(SIZES)], 3), dtype=np.uint8)
        for i, view in enumerate(c.views)
    }
    scale = policy.processing.normalizer.state_scale
    state = scale.unnormalise(rng.uniform(-1.2, 1.2, c.state_dim))
    words = rng.choice(WORDS, rng.integers(2, 8))
    noise = rng.standard_normal((1, c.chunk_size, c.padded_action_dim), np.float32)
    return Inputs(images, state.astype(np.float64), ' '.join(words), torch.from_numpy(noise))


@torch.inference_mode()
def ours(policy: Policy, given: Inputs, times: Tensor) -> Answer:
    """Return the answer of this package; its names are in the order of STAGES."""
    pictures = policy.images([given.images.get(view) for view in policy.config.views])
    ids = policy.prompt_ids(given.instruction, given.state)
    state = policy.processing.state(given.state)
    _, chunk = predict(policy, pictures, ids, state, given.noise, times)
    return {
        **{f'image.{v}': p.numpy() for v, p in zip(given.images, pictures, strict=True)},
        'state': state,
        'tokens': np.array(ids),
        'chunk': chunk[0, :, : policy.config.action_dim].numpy(),
        'actions': policy.processing.actions(chunk[0].numpy(), given.state),
    }


def differences(
    policy: Policy, mine: Answer, other: Answer
) -> Iterator[tuple[str, Quantity, float, bool]]:
    """Yield name, our quantity, the largest absolute error, and whether it is tolerated."""
    unit = np.abs(policy.processing.normalizer.action_scale.unit)
    for name, value in mine.items():
        theirs = np.asarray(other[name]) if name in other else np.empty(0)
        if name == 'chunk':
            theirs = theirs[..., : value.shape[-1]]
        tolerance: Any = 0.0 if name == 'tokens' else 1e-6
        if name == 'state':
            tolerance = 1e-6 * (1 + torch.from_numpy(np.abs(value)))
        elif name == 'chunk':
            tolerance = CHUNK
        elif name == 'actions':  # relative to the spread of each dim, and float32's rounding
            tolerance = torch.from_numpy(CHUNK * (unit + 1e-2 * (1 + np.abs(value).max(0))))
        quantity = Quantity(torch.from_numpy(value), tolerance)
        yield name, quantity, *quantity.compare(torch.tensor(theirs))


def compare(policy: Policy, reference: Reference, count: int) -> bool:
    """Print a line for each observation, and a verdict; return whether all agree."""
    first: list[str] = []
    for seed in range(count):
        given = draw(policy, seed)
        with torch.inference_mode():
            other = reference.answer(given)
        found = list(differences(policy, ours(policy, given, reference.times), other))
        worst = {
            stage: max(error for name, _, error, _ in found if name.partition('.')[0] == stage)
            for stage in STAGES
        }
        print(f'{seed}: ' + '  '.join(f'{stage} {error:.1e}' for stage, error in worst.items()))
        for name, quantity, error, ok in found:
            if not ok:
                print(f'   first difference: {name}: {error:.1e}, tolerance {quantity.widest:.1e}')
                first.append(name)
                break
    if first:
        print(f'{reference.name}: FAIL, {len(first)} of {count} observations differ: {first[0]}')
    else:
        print(f'{reference.name}: ok, {count} observations')
    return not first


def verify(
    folder: Path, project: str, config: str | None, count: int, dims: ModelConfig | None
) -> bool:
    """Compare a checkpoint; return whether both agree. Raises CheckpointError."""
    reference = lerobot(folder) if project == 'lerobot' else openpi(folder, config)
    checkpoint = open_checkpoint(folder, reference.declared, dims)
    print('\n'.join(checkpoint.lines()))
    return compare(checkpoint.load(dtype='float32'), reference, count)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m embodied_kv.model.verify',
        description='Compare a checkpoint here with the project that trained it.',
    )
    parser.add_argument(
        'checkpoint',
        help='folder of LeRobot or openpi, or owner/name@revision of the Hugging Face hub',
    )
    parser.add_argument('--against', choices=('lerobot', 'openpi'), required=True)
    parser.add_argument('--config', help='train config of openpi, such as pi05_libero')
    parser.add_argument('--observations', type=int, default=3, help='number of observations')
    args = parser.parse_args(arguments)
    if args.observations < 1:
        parser.error(f'--observations must be at least 1 (got {args.observations})')
    try:
        folder = locate(args.checkpoint, print).path
        about = folder / ABOUT
        dims = widths(read_json(about)['dims']) if about.is_file() else None
        agrees = verify(folder, args.against, args.config, args.observations, dims)
    except CheckpointError as error:
        print(f'{args.checkpoint}: cannot be compared: {error}', file=sys.stderr)
        return 2
    return 0 if agrees else 1


if __name__ == '__main__':
    sys.exit(main())
