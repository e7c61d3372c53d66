"""Does this suite act as the project that trained a checkpoint? The user's own installation says.

`python -m embodied_kv.model.verify CHECKPOINT --against lerobot|openpi [--config NAME]` loads the
checkpoint twice, theirs and ours, asks both about the same random observations with the same
noise, in float32 on the CPU, and prints where they first part and by how much. It needs memory for
both: 13 GiB each for a pi0.5. Exit status: 0 they agree, 1 they part, 2 it cannot be compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoints.facts import read_json
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.parity import theirs as projects
from embodied_kv.model.parity.recorded import ABOUT, widths
from embodied_kv.model.parity.replay import CHUNK, predict
from embodied_kv.model.parity.theirs import Answer, Asked, Theirs
from embodied_kv.model.policy import Policy
from embodied_kv.model.weights import CheckpointError

# In the order in which an error travels, and how far apart float32 may leave the two.
STAGES = {'image': 1e-6, 'state': 1e-6, 'tokens': 0.0, 'chunk': CHUNK, 'actions': CHUNK}
SIZES = (480, 640), (240, 320), (121, 214)  # of the pictures, a view after the other
WORDS = 'pick up the_red block and place it on the plate in front of you '.split(' ')


@dataclass(frozen=True)
class Parting:
    """The largest difference of one quantity, which belongs to a stage."""

    stage: str
    name: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance


def draw(policy: Policy, seed: int) -> Asked:
    """A random observation: textured pictures, a state around its data, an instruction."""
    rng, c = np.random.default_rng(seed), policy.config
    images = {
        view: rng.integers(0, 256, (*SIZES[i % len(SIZES)], 3), dtype=np.uint8)
        for i, view in enumerate(c.views)
    }
    scale = policy.processing.normalizer.state_scale
    state = scale.unnormalise(rng.uniform(-1.2, 1.2, c.state_dim))
    words = rng.choice(WORDS, rng.integers(2, 8))
    noise = rng.standard_normal((1, c.chunk_size, c.padded_action_dim), np.float32)
    return Asked(images, state.astype(np.float64), ' '.join(words), torch.from_numpy(noise))


@torch.inference_mode()
def ours(policy: Policy, asked: Asked, times: torch.Tensor) -> Answer:
    """What this suite makes of it."""
    images = [asked.images.get(view) for view in policy.config.views]
    pictures = policy.images(images)
    ids = policy.prompt_ids(asked.instruction, asked.state)
    _, chunk = predict(policy, pictures, ids, asked.noise, times)
    return {
        **{f'image.{v}': p.numpy() for v, p in zip(asked.images, pictures, strict=True)},
        'state': policy.processing.state(asked.state),
        'tokens': np.array(ids),
        'chunk': chunk[0, :, : policy.config.action_dim].numpy(),
        'actions': policy.processing.actions(chunk[0].numpy(), asked.state),
    }


def partings(policy: Policy, mine: Answer, other: Answer) -> Iterator[Parting]:
    """Stage by stage, in the order of STAGES."""
    unit = np.abs(policy.processing.normalizer.action_scale.unit)
    for stage, tolerance in STAGES.items():
        for name in (name for name in mine if name.partition('.')[0] == stage):
            a, b = mine[name], other.get(name)
            b = b[..., : a.shape[-1]] if stage == 'chunk' and b is not None else b
            if b is None or a.shape != b.shape:
                yield Parting(stage, name, float('inf'), tolerance)
                continue
            error = np.abs(a.astype(np.float64) - b)
            if stage == 'actions':  # in units of each dim's spread, and what float32 loses
                error = error / (unit + 1e-2 * (1 + np.abs(b).max(0)))
            elif stage == 'state':
                error = error / (1 + np.abs(b))
            yield Parting(stage, name, float(error.max(initial=0)), tolerance)


def compare(policy: Policy, theirs: Theirs, count: int) -> bool:
    """Print a line an observation, and a verdict; true if they agree in all."""
    first: list[str] = []
    for seed in range(count):
        asked = draw(policy, seed)
        with torch.inference_mode():
            other = theirs.answer(asked)
        found = list(partings(policy, ours(policy, asked, theirs.times), other))
        worst = {stage: max(p.error for p in found if p.stage == stage) for stage in STAGES}
        print(f'{seed}: ' + '  '.join(f'{stage} {error:.1e}' for stage, error in worst.items()))
        if apart := next((p for p in found if not p.ok), None):
            print(
                f'   they part at {apart.name}: {apart.error:.1e}, tolerance {apart.tolerance:.1e}'
            )
            first.append(apart.name)
    if first:
        print(f'{theirs.name}: FAIL, {len(first)} of {count} observations part, at {first[0]}')
    else:
        print(f'{theirs.name}: ok, {count} observations')
    return not first


def verify(
    folder: Path, project: str, config: str | None, count: int, dims: ModelConfig | None
) -> bool:
    """Raises CheckpointError where one of the two cannot be had."""
    theirs = projects.lerobot(folder) if project == 'lerobot' else projects.openpi(folder, config)
    checkpoint = open_checkpoint(folder, theirs.declared, dims)
    print('\n'.join(checkpoint.lines()))
    return compare(checkpoint.load(dtype='float32'), theirs, count)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m embodied_kv.model.verify',
        description='Compare a checkpoint here with the project that trained it.',
    )
    parser.add_argument('checkpoint', type=Path, help="folder of LeRobot's or openpi's")
    parser.add_argument('--against', choices=('lerobot', 'openpi'), required=True)
    parser.add_argument('--config', help="openpi's train config, such as pi05_libero")
    parser.add_argument('--observations', type=int, default=3, help='how many to try')
    args = parser.parse_args(arguments)
    if args.observations < 1:
        parser.error(f'--observations must be at least 1 (got {args.observations})')
    about = args.checkpoint / ABOUT
    try:
        dims = widths(read_json(about)['dims']) if about.is_file() else None
        agrees = verify(args.checkpoint, args.against, args.config, args.observations, dims)
    except CheckpointError as error:
        print(f'{args.checkpoint}: cannot be compared: {error}', file=sys.stderr)
        return 2
    return 0 if agrees else 1


if __name__ == '__main__':
    sys.exit(main())
