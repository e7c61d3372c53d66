"""`python -m training.run`: train a policy for any robot from data sets, by its contract.

Data sets are LeRobot's, versions 2.0 to 3.0: what `embodied_kv.data.export` writes, or a user's
own. The policy learns actions by flow matching; where the data has positions of objects, it learns
them, too; where the data has subtasks, it learns their words. Each run continues the last one in
its folder.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from embodied_kv.config import preset
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import shipped
from training.common import loop
from training.common.command import parser, run
from training.common.prefetch import prefetched
from training.data.lerobot_reader import LeRobotDataSet
from training.run.recipe import RunRecipe
from training.run.training import Training, check_contract, split


def shards_of(batch: int, threads: int, is_given: bool) -> int:
    """Return the number of equal parts of a batch, at most `threads`; each has its own thread.

    is_given: whether the user named the number. Raises ValueError if the batch does not divide
    into that many.
    """
    if is_given and (threads < 1 or batch % threads):
        raise ValueError(f'--threads {threads}: a batch of {batch} does not divide into as many')
    return max(n for n in range(1, min(threads, batch) + 1) if batch % n == 0)


def rename_map(text: str) -> dict[str, str]:
    """Parse names by the contract of columns of a data set. Raises ArgumentTypeError."""
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, dict) or not all(isinstance(new, str) for new in names.values()):
        raise argparse.ArgumentTypeError(
            f'rename map must be JSON like {{"image": "observation.images.front"}} (got {text})'
        )
    return names


def train(arguments: argparse.Namespace, recipe: RunRecipe) -> None:
    """Run until the recipe is done or the minutes are over. Raises ValueError."""
    is_cpu = arguments.device == 'cpu'
    threads = arguments.threads or torch.get_num_threads()
    shards = shards_of(recipe.batch, threads, arguments.threads is not None) if is_cpu else 1
    torch.set_num_threads(1 if is_cpu else threads)
    robot, config = Embodiment.load(arguments.contract), preset(arguments.preset)
    check_contract(robot)
    data = [LeRobotDataSet(path, robot, arguments.rename_map) for path in arguments.data]
    for path, one in zip(arguments.data, data, strict=True):
        if one.reordered:
            print(f'{path}: numbers of {" and ".join(one.reordered)} are reordered by their names')
    named = sorted({name for one in data for name in one.objects})
    objects = [] if arguments.ungrounded else named
    seen, unseen = split(data, robot.adapted(config), recipe.seed, objects)
    on = arguments.device, shards, arguments.init
    training = Training(robot, config, recipe, seen, unseen, *on)
    arguments.out.mkdir(parents=True, exist_ok=True)  # also for the log
    training.restore(arguments.out)
    grounding = 'left out' if named and not objects else ', '.join(objects) or 'none in the data'
    print(
        f'{len(seen)} frames to learn from, {len(unseen)} held out; step {training.step} of '
        f'{training.recipe.steps}\nobjects: {grounding}\nwords: '
        + ('none: the policy will be mute' if training.is_mute else 'what is done now'),
        flush=True,
    )
    last = training.recipe.steps
    batches = prefetched(training.batch, training.step, last)
    loop.run(training, batches, last, arguments.out, arguments.minutes)
    policy = arguments.out / 'policy'
    print(
        f'policy of step {training.step} in {policy}\n'
        f'see what it means: python -m embodied_kv.model.check {arguments.contract} {policy}'
    )


def main() -> None:
    """Parse the command line and train."""
    command = parser('run', __doc__)
    command.add_argument(
        '--contract', required=True, help=f'{", ".join(shipped())}, or a YAML file'
    )
    command.add_argument(
        '--data', type=Path, nargs='+', required=True, help='folders of LeRobot data sets'
    )
    command.add_argument(
        '--rename-map',
        '--rename_map',
        type=rename_map,
        default={},
        help='JSON: names by the contract of columns with other names, as in LeRobot, for example '
        '{"image": "observation.images.front", "actions": "action"}',
    )
    command.add_argument('--out', type=Path, required=True, help='folder of the run')
    command.add_argument('--preset', default='tabletop', help='dimensions of the model')
    command.add_argument('--minutes', type=float, default=600.0, help='that this run may take')
    command.add_argument(
        '--threads', type=int, help='parts of a batch at once; else as many as cores allow'
    )
    command.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    command.add_argument(
        '--init', type=Path, help='a policy of these views and numbers to start from'
    )
    command.add_argument(
        '--ungrounded', action='store_true', help='as if the data did not say where objects are'
    )
    run(command, RunRecipe, train)


if __name__ == '__main__':
    main()
