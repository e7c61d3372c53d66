"""`python -m embodied_kv.contracts.import FILE [OUT]`: convert a contract of rosetta.

The command writes OUT and prints a table of the parts of FILE without a counterpart, and of the
assumed values. Exit status: 0 if OUT is a complete contract, else 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from embodied_kv.contracts.rosetta import Converted, convert
from embodied_kv.robots.reading import ContractError, parse

ACCELERATION = 5.0  # rad/s² or m/s²: lower than in all shipped contracts
HEAD = """\
# Made of {name} by python -m embodied_kv.contracts.import.
# Assumed, because contracts of rosetta have no limits: acceleration. Write the robot's own, and
# position and velocity unless robot_description contains them, before the arm moves.
"""


def table(done: Converted) -> Table:
    """Return the table of lost parts and assumed values."""
    found = Table('', 'key', 'value', 'instead', title='Differences from the contract of rosetta')
    for kind, losses in (('lost', done.lost), ('assumed', done.assumed)):
        for loss in losses:
            found.add_row(kind, loss.key, loss.value, loss.instead)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog='import', description=__doc__)
    parser.add_argument('file', type=Path, help='a contract of rosetta')
    parser.add_argument(
        'out', type=Path, nargs='?', help='a new file; default: NAME_contract.yaml, here'
    )
    parser.add_argument(
        '--acceleration',
        type=float,
        default=ACCELERATION,
        help='limit of each joint and axis, rad/s² or m/s²; default: %(default)s',
    )
    parser.add_argument('--frame', default='base_link', help='of twists; default: %(default)s')
    args = parser.parse_args()
    out = args.out or Path(f'{args.file.stem}_contract.yaml')
    try:
        text = args.file.read_text(encoding='utf-8')
        done = convert(text, str(args.file), args.acceleration, args.frame)
        with out.open('x', encoding='utf-8') as stream:
            stream.write(HEAD.format(name=args.file.name))
            yaml.safe_dump(done.values, stream, sort_keys=False, default_flow_style=None)
    except FileExistsError:
        parser.exit(1, f'{out} must be a new file (got an existing one); choose another\n')
    except (ContractError, UnicodeDecodeError, OSError) as error:
        parser.exit(1, f'{error}\n')
    console = Console()
    console.print(table(done))
    if done.changes_numbers:
        print('Warning: numbers of the state or of an action are missing (see the table).')
    try:
        contract = parse(done.values, str(out))
    except ContractError as error:
        parser.exit(1, f'{out} is incomplete:\n{error}\n')
    counts = [sum(len(s.select) for s in part) for part in (contract.state, contract.action)]
    print(
        f'{out}: {len(contract.views)} views, {counts[0]} numbers of the state, {counts[1]} of an '
        'action'
    )


if __name__ == '__main__':
    main()
