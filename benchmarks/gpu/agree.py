"""Our numbers on this device beside those that openpi and LeRobot recorded.

Every quantity that `model.parity` knows, of the golden file and of the recorded checkpoints of
test/data; and each case once more through a whole engine, from raw pictures to robot actions.

Physics: float32 with sums in another order; a convolution must not be left to TF32, which has 10
bits.
"""

from __future__ import annotations

import argparse
import io
import math
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, add_device, command
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.parity import __main__ as parity
from embodied_kv.model.parity.cases import Case, is_case
from embodied_kv.types import Observation

DATA = Path(__file__).resolve().parents[2] / 'test' / 'data'
CHUNK, OTHER_TIMES = 1e-4, 5e-4  # of an action's spread; openpi's times differ in the last bit


def quantities(path: Path, device: str) -> dict:
    """A row: the verdict of `model.parity`, and the lines that fail."""
    said = io.StringIO()
    with redirect_stdout(said):
        ok = parity.compare(str(path), device)
    *lines, _ = said.getvalue().splitlines()
    bad = [' '.join(line.split()) for line in lines if 'FAIL' in line]
    return dict(of=path.name, way='model', quantities=len(lines), ok=ok, error='', why=bad[:5])


def served(path: Path, record: str, device: str) -> dict:
    """A row: a recorded observation through an engine. error: in units of each action's spread."""
    case = Case(path)
    policy = case.checkpoint.load(device, dtype='float32')
    engine = Engine(policy, EngineConfig(rows=4, streams=2, decode_tokens=16, device=device))
    observation = Observation(
        images=case.images(record),
        state=case.state(record),
        instruction=case.instruction(record),
        stamp=0,
        deadline=math.inf,
        sequence=1,
    )
    (handle,) = engine.prefill([observation])
    with engine.kv.acquire(handle) as lease:
        engine.budget.enabled = False  # all Euler steps
        (chunk,) = engine.denoise([lease], [math.inf], case.noise().numpy())
    theirs = case.read(record, 'actions').reshape(chunk.values.shape).numpy()
    spread = np.abs(policy.processing.normalizer.action_scale.unit) + 1e-2
    error = float((np.abs(chunk.values - theirs) / spread).max())
    close = CHUNK if case.checkpoint.kind == 'lerobot' else OTHER_TIMES
    return dict(
        of=f'{path.name}, {record}', way='engine', quantities=1, ok=error <= close, error=error,
        why='',
    )  # fmt: skip


def run(args: argparse.Namespace) -> dict:
    """Compares all that lies there, prints the table, and returns all figures."""
    golden, cases = sorted(DATA.glob('*.safetensors')), sorted(filter(is_case, DATA.glob('*')))
    if not golden or not cases:
        raise BenchmarkError(f'{DATA} is not there: it has to travel with the package')
    if args.dry:
        golden, cases = golden[:1], cases[:1]
    torch.backends.cudnn.allow_tf32 = False
    rows = [quantities(path, args.device) for path in (*golden, *cases)]
    rows += [served(path, record, args.device) for path in cases for record in Case(path).records]
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
