"""Validate a checkpoint against the contract of a robot, without moving the robot.

`python -m embodied_kv.model.check CONTRACT [CHECKPOINT]` prints each dimension of state and action
with its source, unit, normalisation and destination, the prompt, and the memory use, and writes
the pictures as the network receives them. `--data FOLDER` compares statistics of the checkpoint
with a data set. Exit status: 0 if the checkpoint can run, else 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table

from embodied_kv.config import DTYPES, UNTRAINED, ModelConfig, preset
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model import data_range
from embodied_kv.model.checkpoints.checkpoint import Checkpoint
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.processing.normalizer import Scaling
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import ActionDimension, Dimension
from embodied_kv.robots.reading import shipped

CAMERA = 480, 640  # height and width of a test card
INSTRUCTION = 'pick up the red block and place it on the plate'


def state_table(robot: Embodiment, checkpoint: Checkpoint | None) -> Table:
    """Return a table with a row for each dimension of the state."""
    columns = '', 'state', 'from', 'unit', 'policy =', 'normalised -1 … 1'
    table = Table(*columns, title=f'State{_padding(checkpoint, "state")}')
    scale = checkpoint.processing.normalizer.state_scale if checkpoint else None
    for i, d in enumerate(robot.state.dimensions):
        table.add_row(
            str(i), d.name, f'{d.topic}: {d.select}', d.unit, affine(d), ends(scale, i, d)
        )
    return table


def action_table(robot: Embodiment, checkpoint: Checkpoint | None) -> Table:
    """Return a table with a row for each dimension of an action."""
    columns = ('', 'action', 'to', 'unit', 'policy =', 'means', 'normalised -1 … 1', 'limits (SI)')
    table = Table(*columns, title=f'Action{_padding(checkpoint, "action")}')
    scale = checkpoint.processing.normalizer.action_scale if checkpoint else None
    for i, d in enumerate(robot.actions.dimensions):
        table.add_row(
            *(str(i), d.name, f'{d.topic}: {d.select}', d.unit, affine(d), meaning(d)),
            ends(scale, i, d),
            limits(robot, d),
        )
    return table


def data_table(ranges: Sequence[data_range.DataRange]) -> Table:
    """Return a table with a row for each number of a data set."""
    table = Table('', 'number', 'data set 1% … 99%', 'range of the training: -1 … 1', title='Data')
    for i, r in enumerate(ranges):
        low, high = r.normalised
        table.add_row(
            str(i), f'{r.part} {r.name}', f'{r.low:.4g} … {r.high:.4g}', f'{low:.3g} … {high:.3g}'
        )
    return table


def _padding(checkpoint: Checkpoint | None, part: str) -> str:
    if checkpoint is None or part not in checkpoint.padded:
        return ''
    dims = checkpoint.config.state_dim if part == 'state' else checkpoint.config.action_dim
    return f': {dims} dims{checkpoint.padding(part)}, the others are padding'


def affine(d: Dimension) -> str:
    """Return `scale * SI + offset`, which is the policy's value, as text."""
    factor = '' if d.scale == 1 else f'{d.scale:.6g} · '
    return f'{factor}SI' + (f' {d.offset:+.6g}' if d.offset else '')


def meaning(d: ActionDimension) -> str:
    """Return what the value of an action commands."""
    kind = 'velocity' if d.is_velocity else 'offset from the state' if d.relative else 'position'
    clamp = f', within {d.clamp[0]:g} … {d.clamp[1]:g}' if d.clamp else ''
    return kind + clamp + (', one of both' if d.binary else '')


def ends(scale: Scaling | None, i: int, d: Dimension) -> str:
    """Return the policy values for -1 and 1 of the network, for the last action of a chunk."""
    if scale is None:
        return 'by the checkpoint'
    dims = scale.origin.shape[-1]
    low, high = (scale.unnormalise(np.full(dims, end)).reshape(-1, dims) for end in (-1.0, 1.0))
    return f'{low[-1, i]:.4g} … {high[-1, i]:.4g} ({scale.mode})'


def limits(robot: Embodiment, d: ActionDimension) -> str:
    of = robot.contract.limits[d.axis]
    position = f'{of.position[0]:g} … {of.position[1]:g}, ' if of.position else ''
    velocity = f'{of.velocity:g}' if of.velocity else 'robot_description'
    return f'{position}velocity {velocity}, acceleration {of.acceleration:g}'


def card(name: str) -> NDArray[np.uint8]:
    """Return a test card that labels the corners of a picture: uint8 [480, 640, 3]."""
    height, width = CAMERA
    image = Image.new('RGB', (width, height), (40, 44, 52))
    draw = ImageDraw.Draw(image)
    for x in range(0, width, 80):
        draw.line([(x, 0), (x, height)], (90, 96, 110))
    for y in range(0, height, 80):
        draw.line([(0, y), (width, y)], (90, 96, 110))
    draw.ellipse([width / 2 - 150, height / 2 - 150, width / 2 + 150, height / 2 + 150], width=4)
    corners = {(12, 8): 'top left', (width - 150, 8): 'top right'}
    corners |= {(12, height - 40): 'bottom left', (width - 190, height - 40): 'bottom right'}
    for place, label in corners.items():
        draw.text(place, label, (255, 210, 90), font_size=26)
    draw.text((width / 2 - 120, height / 2 - 16), name[-22:], (255, 255, 255), font_size=24)
    return np.asarray(image)


def pictures(robot: Embodiment, checkpoint: Checkpoint, given: dict[str, Path]) -> Image.Image:
    """Return the views side by side, as the network receives them.

    given: picture file of a view, used instead of a test card. Raises ValueError, OSError.
    """
    size, resize = checkpoint.config.vision.image_size, checkpoint.processing.resize
    if unknown := sorted(given.keys() - {*checkpoint.config.views}):
        views = ', '.join(checkpoint.config.views)
        raise ValueError(f'--image must name one of the views {views} (got {unknown[0]})')
    framed_views = []
    for name in checkpoint.config.views:
        view = robot.contract.views[name]
        pixels = (
            np.asarray(Image.open(given[name]).convert('RGB')) if name in given else card(name)
        )
        framed_views.append(view.framed(pixels))
    tensors = resize.to_model(framed_views, size)
    shown = ((tensors.permute(0, 2, 3, 1).numpy() + 1) * 127.5).round().clip(0, 255)
    return Image.fromarray(np.concatenate(list(shown.astype(np.uint8)), axis=1))


def memory(config: ModelConfig, engine: EngineConfig) -> str:
    """Return the memory use of weights and cache in the dtype of the config."""
    weights = (
        sum(p.numel() for p in Pi05.empty(config, 'meta').parameters()) * DTYPES[config.dtype]
    )
    cache = engine.rows * config.prefix_tokens * config.kv_bytes_per_token
    return (
        f'{weights / 2**20:,.0f} MiB of weights in {config.dtype}, {cache / 2**20:,.0f} MiB of '
        f'cache for {engine.rows} rows of {config.prefix_tokens} tokens'
    )


def prompt(checkpoint: Checkpoint) -> tuple[str, int]:
    """Return the prompt for a state in the middle of the data, and its number of tokens."""
    tokenizer, p, config = checkpoint.tokenizer(), checkpoint.processing, checkpoint.config
    middle = np.zeros(config.state_dim)
    ids, _ = p.prompt.tokens(tokenizer, INSTRUCTION, middle, config.max_text)
    return tokenizer.decode(ids), len(ids)


def untrained(robot: Embodiment, name: str) -> ModelConfig:
    """Return the dimensions of untrained weights: a preset, adapted to the robot.

    name: '' for the smallest preset. Raises ValueError for an unknown one, and for one that does
    not fit the robot.
    """
    config = robot.adapted(preset(name or UNTRAINED))
    robot.check(config)
    return config


def check(arguments: argparse.Namespace, console: Console) -> None:
    """Print the description. Raises ValueError where checkpoint and contract do not fit."""
    robot = Embodiment.load(arguments.contract)
    contract = robot.contract
    console.print(
        f'[bold]{contract.robot_type}[/]: {contract.fps:g} actions per second, '
        f'{contract.execution_horizon or "all"} of a chunk are executed'
    )
    checkpoint, config = None, None
    if arguments.checkpoint == 'random':
        config = untrained(robot, arguments.preset)
        console.print(f'untrained weights of the preset {config.name}: they have no statistics')
    elif arguments.checkpoint:
        dimensions = preset(arguments.preset) if arguments.preset else None
        checkpoint = open_checkpoint(
            arguments.checkpoint, robot.declared, dimensions, console.print
        )
        config = checkpoint.config
        robot.check(config)
        for line in checkpoint.lines():
            console.print(line, markup=False, highlight=False)
    console.print(state_table(robot, checkpoint))
    console.print(action_table(robot, checkpoint))
    for output in robot.outputs:
        console.print(f'{output.topic} [{output.type}]: {", ".join(output.axes)}', markup=False)
    if config is not None:
        console.print(memory(config, EngineConfig()), markup=False)
    if checkpoint is None:
        for name in ('data', 'image'):
            if getattr(arguments, name):
                raise ValueError(
                    f'--{name} must come with a checkpoint (got none or random); name its folder'
                )
        return
    lines = data_range.warnings(robot, checkpoint)
    if arguments.data:
        ranges = data_range.compare(robot, checkpoint, arguments.data)
        console.print(data_table(ranges))
        lines += [line for r in ranges for line in r.warnings]
    for line in lines:
        console.print(f'warning: {line}', markup=False, highlight=False)
    text, tokens = prompt(checkpoint)
    console.print(f'prompt ({tokens} tokens): {text!r}', markup=False)
    pictures(robot, checkpoint, arguments.image).save(arguments.png)
    console.print(f'pictures as the network receives them: {arguments.png}', markup=False)


def _image(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition('=')
    if not equals:
        raise argparse.ArgumentTypeError(f'must be VIEW=FILE (got {text!r})')
    return name, Path(path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m embodied_kv.model.check',
        description='Validate a checkpoint against the contract of a robot.',
    )
    parser.add_argument('contract', help=f'{", ".join(shipped())}, or a YAML file')
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help='folder of openpi, LeRobot or embodied_kv; random: untrained weights',
    )
    parser.add_argument(
        '--preset', default='', help='preset for dimensions that the checkpoint does not state'
    )
    parser.add_argument(
        '--image',
        type=_image,
        action='append',
        default=[],
        metavar='VIEW=FILE',
        help='picture of a view',
    )
    parser.add_argument(
        '--data', type=Path, help='data set of LeRobot to compare with the checkpoint'
    )
    parser.add_argument('--png', default='check.png', help='file to write the pictures to')
    given = parser.parse_args(arguments)
    given.image = dict(given.image)
    try:
        check(given, Console(width=None if sys.stdout.isatty() else 200))
    except (ValueError, OSError) as error:
        print(f'the checkpoint cannot run: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
