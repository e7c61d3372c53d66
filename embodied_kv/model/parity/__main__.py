"""Compare the model with recorded results: `python -m embodied_kv.model.parity FILE...`.

For a golden file, the command rebuilds the model, runs it as the engine does (valid tokens, packed
into a row of the arena), scatters the result back to the padded slots of the reference, and prints
the largest absolute error of each recorded quantity, then a verdict. For a checkpoint folder with
case.json, raw observations pass through the loader and the policy of the nodes, and the resulting
actions are compared in the units of the robot.

Exit status: 0 if all are within tolerance, 1 if one is not, 2 if a file cannot be compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from embodied_kv.model.parity.cases import Case, exit_status, is_case, report
from embodied_kv.model.parity.golden import Golden, quantities
from embodied_kv.model.parity.replay import Replay


@torch.inference_mode()
def compare(path: str, device: str = 'cpu') -> bool:
    """Print a line for each recorded quantity, then the verdict; return whether all are ok."""
    if not is_case(path):
        golden = Golden(path, device)
        return report(path, golden.expected, golden.read, quantities(golden))
    case = Case(path)
    policy = case.checkpoint.load(device, dtype='float32')
    found = {record: Replay(case, policy, record).quantities() for record in case.records}
    known = {f'{record}.{name}': q for record, some in found.items() for name, q in some.items()}
    names = [f'{record}.{name}' for record in found for name in case.expected(record)]
    return report(path, names, lambda name: case.read(*name.split('.', 1)), known)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m embodied_kv.model.parity',
        description='Compare the model with recorded results of a public reference.',
    )
    parser.add_argument('files', nargs='+', metavar='FILE', help='golden file or case folder')
    parser.add_argument('--device', default='cpu', help='device that computes: cpu or cuda')
    args = parser.parse_args(arguments)
    return exit_status(args.files, lambda path: compare(path, args.device))


if __name__ == '__main__':
    sys.exit(main())
