"""Memory as KV: `python -m embodied_kv.bench.memory PART`, and PART --help.

trace: an embodied trace in all ways of reuse. ablations: KEEP without each of its ideas. timeline:
loads beside computation. judge: chains across segments.

Each part is a module of its own, imported only when asked for: it adds its arguments, measures,
prints its tables and returns its figures.

Source: KEEP, a KV-cache-centric memory management system for efficient embodied planning.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from embodied_kv.bench import report

PARTS = dict(
    trace='memory.trace',
    ablations='memory.ablations',
    timeline='memory.timeline',
    judge='memory_judge',
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one part."""
    first, *rest = (list(sys.argv[1:]) if arguments is None else list(arguments)) or ['--help']
    command = _parser('python -m embodied_kv.bench.memory', __doc__)
    command.add_argument('part', choices=PARTS)
    part = command.parse_args([first]).part
    module = importlib.import_module(f'embodied_kv.bench.{PARTS[part]}')
    parser = _parser(f'{command.prog} {part}', module.__doc__)
    module.add_arguments(parser)
    report.save(f'memory_{part}', module.run(parser.parse_args(rest)))


def _parser(name: str, text: str) -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    return argparse.ArgumentParser(prog=name, description=text, formatter_class=form)


if __name__ == '__main__':
    main()
