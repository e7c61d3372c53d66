"""Compressed prefixes: `python -m embodied_kv.bench.compress PART`, and PART --help.

metrics: what attention says (sparsity, hit rates, modalities). quality: right answers by method
and budget, and closed loop. needle: a long synthetic context. speed: time and bytes.

Each part is a module of its own, imported only when asked for: it adds its arguments, measures,
prints its tables and returns its figures.

Source: VL-Cache, sections 3 and 5.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from embodied_kv.bench import report

PARTS = dict(metrics='metrics', quality='quality', needle='needle', speed='speed.tables')


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one part."""
    first, *rest = (list(sys.argv[1:]) if arguments is None else list(arguments)) or ['--help']
    command = _parser('python -m embodied_kv.bench.compress', __doc__)
    command.add_argument('part', choices=PARTS)
    part = command.parse_args([first]).part
    module = importlib.import_module(f'embodied_kv.bench.compress.{PARTS[part]}')
    parser = _parser(f'{command.prog} {part}', module.__doc__)
    module.add_arguments(parser)
    report.save(f'compress_{part}', module.run(parser.parse_args(rest)))


def _parser(name: str, text: str) -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    return argparse.ArgumentParser(prog=name, description=text, formatter_class=form)


if __name__ == '__main__':
    main()
