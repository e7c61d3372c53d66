"""The command line of a benchmark, and where its figures go.

Knows arguments, the name and the result. Does not know what is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch

from benchmarks.common import report
from benchmarks.common.workers import Workers


class BenchmarkError(Exception):
    """Something cannot be measured; the message is the reason, in one line."""


def command(
    name: str,
    text: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], dict],
    expected: Callable[[BaseException], bool] = lambda error: False,
) -> Callable[[Sequence[str] | None], None]:
    """Return the `main` of `python -m benchmarks.NAME`; text: its help.

    It measures by `run`, adds the machine to the figures, writes them to out/bench/NAME.json (dots
    as underscores), and prints the same as one line, last. A `BenchmarkError` ends it with exit
    status 2. An error of a thread or callback of its process is raised, unless it is `expected`.
    """

    def main(arguments: Sequence[str] | None = None) -> None:
        parser = _parser(name, text)
        add_arguments(parser)
        parser.add_argument('--json', action='store_true', help='no table, only the line')
        args = parser.parse_args(arguments)
        try:
            with Workers(expected):
                found = run(args)
        except BenchmarkError as error:
            parser.exit(2, f'{parser.prog}: {error}\n')
        file = name.replace('.', '_')
        machine = report.machine(getattr(args, 'device', 'cpu'))
        report.save(file, dict(bench=file, machine=machine) | found)

    return main


def overview(name: str, text: str) -> None:
    """Print the help of a folder of benchmarks, each of which is a command."""
    parser = _parser(name, text)
    parser.parse_args()
    parser.print_help()


def _parser(name: str, text: str) -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    prog = f'python -m benchmarks.{name}'
    return argparse.ArgumentParser(prog=prog, description=text, formatter_class=form)


def add_engine(parser: argparse.ArgumentParser, preset: str = 'pi05_small') -> None:
    """Add --preset, --device and --threads of the model that is measured."""
    parser.add_argument('--preset', default=preset, help='dimensions of the model')
    add_device(parser)
    parser.add_argument('--threads', type=int, default=2, help='of torch')


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device; the default is CUDA if it is available."""
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
