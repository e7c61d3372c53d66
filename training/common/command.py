"""The command line of a training: every field of its recipe is an option."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from training.common.recipe import Recipe


def parser(name: str, text: str) -> argparse.ArgumentParser:
    """Return the parser of `python -m training.NAME`.

    text: a docstring, whose first line is shown.
    """
    prog = f'python -m training.{name}'
    return argparse.ArgumentParser(prog=prog, description=text.splitlines()[0])


def run(
    command: argparse.ArgumentParser,
    kind: type[Recipe],
    train: Callable[[argparse.Namespace, Recipe], None],
) -> None:
    """Parse the command line and train by the recipe.

    A ValueError is printed in one line and ends the process with exit status 2.
    """
    for field in fields(kind):
        many = isinstance(field.default, tuple)
        command.add_argument(
            f'--{field.name.replace("_", "-")}',
            type=type(field.default[0] if many else field.default),
            default=field.default,
            nargs='+' if many else None,
            **field.metadata,
        )
    arguments = command.parse_args()
    given = {field.name: getattr(arguments, field.name) for field in fields(kind)}
    try:
        recipe = kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})
        train(arguments, recipe)
    except ValueError as error:
        command.exit(2, f'{command.prog}: {error}\n')


def run_for_minutes(
    name: str, text: str, kind: type[Recipe], train: Callable[[Path, Recipe, float], None]
) -> None:
    """Run a training that writes a folder and has a time limit: adds `--out` and `--minutes`."""
    command = parser(name, text)
    command.add_argument('--out', type=Path, default=Path('out/train') / name, help='folder')
    command.add_argument('--minutes', type=float, default=600.0, help='that this may take')
    run(command, kind, lambda args, recipe: train(args.out, recipe, args.minutes))
