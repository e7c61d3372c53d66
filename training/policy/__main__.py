"""`python -m training.policy`: train a policy; each run continues the last one.

Flow matching on actions and cross-entropy on text use one shared prefix, in addition to grounding
(`objective`). A step is a function of the recipe, the dataset and the step's number, so that an
interrupted run has the same steps as an uninterrupted one.
"""

from __future__ import annotations

import argparse
import time
import zlib
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from embodied_kv.config import preset
from embodied_kv.model.checkpoints.own import MAX_ACTION_PREFIX, MAX_MEMORY_ROWS, save
from embodied_kv.model.weights import Weights
from embodied_kv.progress import Progress
from training.common.command import parser, run
from training.common.journal import Journal
from training.common.learner import TRAINED
from training.common.prefetch import prefetched
from training.common.words import train_tokenizer
from training.policy.dataset import Frames, Sampler, measure
from training.policy.episodes import COLOUR_NAMES, SHAPE_NAMES, find_episodes
from training.policy.recipe import PolicyRecipe
from training.policy.trainer import Trainer

HELD_OUT = 50  # episodes kept for validation, at most a tenth
VALIDATION = 8  # batches of validation


def train(arguments: argparse.Namespace, recipe: PolicyRecipe) -> None:
    """Run until the recipe is done or the minutes are over. Raises ValueError."""
    console = Console(stderr=True)
    began = time.monotonic()
    torch.set_num_threads(1 if arguments.device == 'cpu' else arguments.threads)
    config = replace(preset(arguments.preset), dtype='float32')
    paths = find_episodes(arguments.data)
    held_out = max(1, min(HELD_OUT, len(paths) // 10))
    remembers = recipe.memory_rows > 0
    frames = Frames.read(paths[held_out:], remembers)
    unseen = Frames.read(paths[:held_out], remembers)
    shards = arguments.threads if arguments.device == 'cpu' else 1
    trainer = Trainer(
        config, recipe, len(COLOUR_NAMES), len(SHAPE_NAMES), arguments.device, shards
    )
    tokenizer = train_tokenizer(config.backbone.vocab_size, recipe.memory_rows > 0)
    past = ''  # training of the weights before this run
    if arguments.init:
        normalizer = trainer.adopt(arguments.init, tokenizer)
        past = f'{Weights(arguments.init).metadata.get(TRAINED, "other weights")}, then '
    else:
        normalizer = measure(frames, config, recipe.seed)

    def sampler(of: Frames, seed: int) -> Sampler:
        how = dict(batch=recipe.batch, seed=seed, rtc=recipe.rtc)
        how |= dict(memory=recipe.memory_rows)
        return Sampler(of, config, tokenizer, normalizer, **how)

    arguments.out.mkdir(parents=True, exist_ok=True)
    checkpoint = arguments.out / 'state.safetensors'
    if checkpoint.exists():
        trainer.restore(checkpoint)
    if arguments.compile:
        trainer.compile()
    journal = Journal(arguments.out / 'log.csv', trainer.step)
    console.print(
        f'{len(frames)} frames of {len(paths) - held_out} episodes, {held_out} held out; '
        f'from step {trainer.step} of {recipe.steps}, {arguments.threads} threads'
    )
    unseen_sampler = sampler(unseen, recipe.seed + 1)
    # A stage must not repeat the samples of the stage that its weights come from.
    seed = zlib.crc32(f'{recipe.seed} {past}'.encode()) if past else recipe.seed

    def keep() -> None:
        ground = recipe.grounds(trainer.step - 1)
        batches = (unseen_sampler.batch(i, ground) for i in range(VALIDATION))
        journal.write(trainer.step, 'unseen', trainer.validate(batches))
        trainer.store(checkpoint)
        journal.plot(arguments.out / 'curves.png')
        console.print(f'{(time.monotonic() - began) / 60:.1f} min', journal.last())

    kept = time.monotonic()
    seen_sampler = sampler(frames, seed)
    batches = prefetched(
        lambda step: seen_sampler.batch(step, recipe.grounds(step)), trainer.step, recipe.steps
    )
    progress = Progress('steps', recipe.steps, trainer.step, 60 * arguments.minutes, console)
    with progress:
        for step, batch in enumerate(progress.track(batches), trainer.step):
            values = trainer.learn(batch)
            if step % 20 == 0:
                journal.write(step, 'seen', values)
            now = time.monotonic()
            if now - kept > 60 * arguments.keep_every:
                keep()
                kept = time.monotonic()
            if now - began > 60 * arguments.minutes:
                break
    keep()
    save(
        arguments.out / 'policy',
        {name: value.bfloat16() for name, value in trainer.average.items()},
        config,
        normalizer,
        tokenizer,
        trainer.card(
            data=f'{len(frames)} frames of the scripted expert, simulated tabletop',
            use='the simulated tabletop of embodied_kv; not for a real robot',
            past=past,
        )
        | {MAX_ACTION_PREFIX: str(recipe.rtc), MAX_MEMORY_ROWS: str(recipe.memory_rows)},
    )
    console.print(f'policy of step {trainer.step} in {arguments.out / "policy"}')


def main() -> None:
    """Parse the command line and train."""
    command = parser('policy', __doc__)
    command.add_argument('--data', type=Path, default=Path('out/train/data'), help='dataset')
    command.add_argument('--out', type=Path, default=Path('out/train/run'), help='folder')
    command.add_argument('--init', type=Path, help='a policy to start from, with its words')
    command.add_argument('--preset', default='tabletop', help='dimensions of the model')
    command.add_argument('--minutes', type=float, default=75.0, help='that this run may take')
    command.add_argument('--keep-every', type=float, default=5.0, help='minutes')
    command.add_argument('--threads', type=int, default=torch.get_num_threads(), help='of torch')
    command.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    command.add_argument('--compile', action='store_true', help='torch.compile the objective')
    run(command, PolicyRecipe, train)


if __name__ == '__main__':
    main()
