"""Whether this machine compiles ahead of time and replays the result; takes seconds.

The steps of `engine.compile` for a whole model, applied to a product, to attention over gathered
rows and to a store into rows, in the dtype and heads of pi05: traced, compiled, loaded from the
file, captured where the device can, and replayed twice with inputs other than those of the
capture.

Physics: sums in another order, rounded to bfloat16 as the function itself rounds them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import report
from benchmarks.common.command import add_device, command
from benchmarks.gpu.kernels import TOLERANCES, difference
from embodied_kv.kernels.dense import dense_attention, dense_store
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.compiled import Compiler, Computation
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import StepInputs

QUERIES, KEYS, HEADS, DIM = 50, 762, 8, 256  # of an Euler step of two views
DTYPE = torch.bfloat16


@dataclass(frozen=True, eq=False)
class Case:
    """A computation: fn makes `made` of `given`."""

    of: str
    fn: Computation
    given: Tensor
    made: Tensor


class Given:
    """The input of a computation, as the view of its graph."""

    fits_compiled = True

    def __init__(self, given: Tensor) -> None:
        self.inputs, self.buffers = StepInputs(given.device, {}), [Buffer('given', given)]


def cases(device: str) -> Iterator[Case]:
    """Yield the cases, each over memory of its own."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, DTYPE)

    generator = torch.Generator().manual_seed(0)
    x, weight, y = normal(QUERIES, DIM), normal(DIM, DIM), normal(QUERIES, DIM)

    def product() -> None:
        y.copy_(torch.tanh(x @ weight / DIM**0.5))

    yield Case('product', product, x, y)
    q, out = normal(1, QUERIES, HEADS, DIM), normal(1, QUERIES, HEADS, DIM)
    keys, values = normal(1, 1, KEYS, DIM), normal(1, 1, KEYS, DIM)
    seen = torch.arange(KEYS, device=device)[None, None] < KEYS - QUERIES

    def attention() -> None:
        out.copy_(dense_attention(q, keys, values, seen))

    yield Case('attention', attention, q, out)
    new, rows = normal(2, QUERIES, 1, DIM), normal(4, 1, KEYS, DIM)
    batch = RowBatch(2, np.zeros((1, 4), np.int32), QUERIES, device=device)
    batch.bind([2], [7], [QUERIES - 1])  # the second slot is padding

    def store() -> None:
        dense_store(new, rows, batch)

    yield Case('store', store, new, rows)


def checked(case: Case, device: str, folder: Path) -> dict:
    """Return a row; if the case cannot be compiled, it has the reason."""
    said: list[str] = []
    began, shape = time.monotonic(), Shape(case.of, 1)
    compiler = Compiler(say=said.append, folder=folder, names=[str(shape)])
    row = dict(of=case.of, error=None, tolerance=TOLERANCES[DTYPE], ok=False, why='')
    graph = GraphCache(device, compiler=compiler).capture(
        shape, lambda _: case.fn(), Given(case.given), writes=[Buffer('made', case.made)]
    )
    if not graph.is_compiled:
        return row | dict(seconds=time.monotonic() - began, why=said[-1])
    worst = 0.0
    for factor in (0.5, -1.0):
        case.given.mul_(factor)
        graph.replay()
        ours = case.made.clone()
        case.fn()
        worst = max(worst, difference(ours, case.made))
    ok = worst <= row['tolerance']
    return row | dict(error=worst, ok=ok, seconds=time.monotonic() - began)


@torch.inference_mode()
def run(args: argparse.Namespace) -> dict:
    """Compile and compare, print the table, and return all figures."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [checked(case, args.device, Path(folder)) for case in cases(args.device)]
    if not args.json:
        report.show(f'compiled ahead of time, {args.device}', rows)
    return dict(ok=all(row['ok'] for row in rows), rows=rows)


main = command('gpu.compiles', __doc__, add_device, run)

if __name__ == '__main__':
    main()
