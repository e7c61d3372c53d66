"""Write a record of figures from the output of a benchmark.

`python -m benchmarks.results NAME OUTPUT` reads the paths of benchmarks/results/NAME.json, takes
their values from OUTPUT, the JSON file or line of the record's command, and writes the record with
date and machine. A path has names, numbers of list entries, and entries of a list that have given
values: `ratios[way=isolated,N=30].ratio`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
STEP = re.compile(r'([^.\[\]]+)|\[([^\]]*)\]')
MACHINE = ('cpu', 'cpu_flags', 'cores', 'threads', 'load', 'torch')


def value_at(found: object, path: str) -> object:
    """Return the value at a path. Raises LookupError if there is none, or more than one."""
    for name, condition in STEP.findall(path):
        if name:
            found = found[name]
        elif condition.lstrip('-').isdigit():
            found = found[int(condition)]
        else:
            wanted = dict(part.split('=', 1) for part in condition.split(','))
            fits = [x for x in found if all(str(x.get(k)) == v for k, v in wanted.items())]
            if len(fits) != 1:
                raise LookupError(f'{path} must name one entry (got {len(fits)})')
            found = fits[0]
    return found


def refreshed(record: Mapping, output: Mapping, date: str) -> dict:
    """Return the record with the values and the machine of an output. Raises LookupError."""
    figures = {}
    for name, figure in record['figures'].items():
        if 'path' in figure:
            value = value_at(output, figure['path']) * figure.get('scale', 1)
            figure = figure | dict(value=round(value, 4))
        figures[name] = figure
    machine = {key: output['machine'][key] for key in MACHINE if key in output['machine']}
    return {
        'command': record['command'],
        'source': 'measured',
        'date': date,
        'machine': machine,
        'figures': figures,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.results', description=__doc__)
    parser.add_argument('name', choices=sorted(path.stem for path in FOLDER.glob('*.json')))
    parser.add_argument('output', type=Path, help='a file whose last line is the JSON of a run')
    args = parser.parse_args(arguments)
    path = FOLDER / f'{args.name}.json'
    output = json.loads(args.output.read_text().splitlines()[-1])
    ended = datetime.date.fromtimestamp(args.output.stat().st_mtime).isoformat()
    try:
        record = refreshed(json.loads(path.read_text()), output, ended)
    except LookupError as error:
        parser.error(f'{args.output} is not an output of the command of {path.name}: {error}')
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + '\n')


if __name__ == '__main__':
    main()
