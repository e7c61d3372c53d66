"""The results of this device compared with those that openpi and LeRobot recorded.

`model.parity` compares each tensor of the golden file and of the recorded checkpoints of
test/data; `engine.parity` compares their actions, from raw images through an engine.

Physics: float32 sums in another order differ in their last bits. A convolution must not use TF32,
which has 10 bits.
"""

from __future__ import annotations

import argparse
import io
from contextlib import redirect_stdout
from pathlib import Path

import torch

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, add_device, command
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.parity import config as parity_config
from embodied_kv.engine.parity import is_bounded, quantity, recorded
from embodied_kv.model.parity import __main__ as parity
from embodied_kv.model.parity.cases import Case, is_case

DATA = Path(__file__).resolve().parents[2] / 'test' / 'data'


def quantities(path: Path, device: str) -> dict:
    """Return a row: the verdict of `model.parity`, and the lines that fail."""
    said = io.StringIO()
    with redirect_stdout(said):
        ok = parity.compare(str(path), device)
    *lines, _ = said.getvalue().splitlines()
    bad = [' '.join(line.split()) for line in lines if 'FAIL' in line]
    return dict(of=path.name, way='model', quantities=len(lines), ok=ok, error='', why=bad[:5])


def served(path: Path, device: str) -> list[dict]:
    """Return a row for each recorded observation that an engine computes.

    error: in the robot's units.
    """
    case = Case(path)
    policy = case.checkpoint.load(device, dtype='float32')
    engine, rows = Engine(policy, parity_config(device, 'off')), []
    for record in case.records:
        if is_bounded(case, policy, record):
            continue
        error, ok = quantity(engine, case, record).compare(recorded(case, record))
        row = dict(of=f'{path.name}, {record}', way='engine', quantities=1, ok=ok, error=error)
        rows.append(row | dict(why=''))
    return rows


def run(args: argparse.Namespace) -> dict:
    """Compare all recorded cases, print the table, and return all figures."""
    golden, cases = sorted(DATA.glob('*.safetensors')), sorted(filter(is_case, DATA.glob('*')))
    if not golden or not cases:
        raise BenchmarkError(f'{DATA} is not there: it has to travel with the package')
    if args.dry:
        golden, cases = golden[:1], cases[:1]
    torch.backends.cudnn.allow_tf32 = False
    rows = [quantities(path, args.device) for path in (*golden, *cases)]
    rows += [row for path in cases for row in served(path, args.device)]
    if not args.json:
        report.show(f'beside recorded numbers, {args.device}', rows)
    return dict(ok=all(row['ok'] for row in rows), rows=rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this stage."""
    add_device(parser)
    parser.add_argument(
        '--dry', action='store_true', help='the first file and the first checkpoint'
    )


main = command('gpu.agree', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
