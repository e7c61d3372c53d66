"""Every Triton kernel on the card compared with its torch counterpart on the CPU.

The shapes are those of pi05 and the other presets: prefixes, Euler steps, decode steps, appended
questions, padding, compressed rows; heads of 48, 80 and 256 numbers, in float32 and bfloat16. The
counterpart computes in float32 from the same, maybe rounded, numbers. A shape that cannot run (for
example without room in shared memory) is a row with the reason.

Physics: a product of bfloat16 numbers is exact in float32, so scores differ only by the order of
sums; attention weights are rounded before they meet values, and so is the result.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import report
from benchmarks.common.command import add_device, command
from embodied_kv.kernels import score
from embodied_kv.kernels.attention import torch_row_attention, torch_segments_attention
from embodied_kv.kernels.dense import dense_attention, dense_store
from embodied_kv.kernels.rows import PADDING, RowBatch, Segment
from embodied_kv.kernels.store import torch_store

# What is served comes first, in case the time is not enough for all.
TOLERANCES = {torch.bfloat16: 2e-2, torch.float32: 5e-5}
DIMS, DRY_DIMS = (256, 48, 80), (16, 24)
P = 0.01  # threshold of the counts
AT_THRESHOLD = 0.005  # share of the entries that may be counted otherwise, as they are near it


@dataclass(frozen=True)
class Case:
    """A batch over rows: slots of `tokens` query tokens, rows of up to `most` tokens.

    causal: as `RowBatch`. layers: of compressed rows, pieces of one axis; 0: ordinary rows.
    """

    of: str
    slots: int
    tokens: int
    most: int
    causal: bool = False
    layers: int = 0
    heads: int = 8
    kv_heads: int = 1


CASES = (
    Case('Euler step', 1, 50, 968),
    Case('Euler step, 4 robots', 4, 50, 968),
    Case('prefill', 1, 712, 712),
    Case('decode step, prefixes', 16, 1, 968),
    Case('decode step, tails', 16, 1, 96, causal=True),
    Case('question', 1, 24, 96, causal=True),
    Case('decode step, compressed', 7, 1, 97, layers=3),
    Case('grouped heads', 3, 5, 200, kv_heads=2),
)
DRY_CASES = (
    Case('decode step', 3, 1, 20),
    Case('question', 1, 3, 20, causal=True),
    Case('compressed', 3, 1, 9, layers=2, heads=4, kv_heads=2),
)


def random(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Return normal numbers rounded to this dtype, as float32 on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator).to(dtype).float()


def batch(case: Case, device: str) -> RowBatch:
    """Return slots over shuffled rows of different lengths; the last but one slot is padding."""
    rng = np.random.default_rng(len(case.of))
    rows, layers = max(4, case.slots), max(1, case.layers)
    least = case.tokens if case.causal else 1
    lengths = rng.integers(least, case.most + 1, (layers, rows), dtype=np.int32)
    offsets = None
    if case.layers:
        offsets = np.arange(layers * rows, dtype=np.int32).reshape(layers, rows) * case.most
    made = RowBatch(case.slots, lengths, case.tokens, case.causal, offsets, device=device)
    bound = rng.permutation(rows)[: case.slots].tolist()
    if case.slots > 1:
        bound[-2] = PADDING
    return made.bind(bound)


def attention(case: Case, dim: int, dtype: torch.dtype, device: str) -> float:
    """Return the largest difference, of outputs and of log-sum-exps, over all layers."""
    from embodied_kv.kernels.triton_attention import row_attention

    rows, layers = max(4, case.slots), max(1, case.layers)
    ragged = 1, case.kv_heads, layers * rows * case.most, dim
    shape = ragged if case.layers else (rows, case.kv_heads, case.most, dim)
    q = random((case.slots, case.tokens, case.heads, dim), dtype, 1)
    k, v = random(shape, dtype, 2), random(shape, dtype, 3)
    ours, twins = batch(case, device), batch(case, 'cpu')
    given = [part.to(device, dtype) for part in (q, k, v)]
    worst = 0.0
    for layer in range(layers):
        out, lse = row_attention(*given, ours, layer)
        expected, sums = torch_row_attention(q, k, v, twins, layer)
        worst = max(worst, difference(out, expected), difference(lse, sums))
    return worst


def segments(case: Case, dim: int, dtype: torch.dtype, device: str) -> float:
    """Return the largest difference for prefixes, a third compressed, and tails in one call."""
    from embodied_kv.kernels.triton_segments import segments_attention

    q = random((case.slots, case.tokens, case.heads, dim), dtype, 1)
    parts = case, replace(case, layers=1), replace(case, most=case.tokens + 96, causal=True)
    ours, twins = [], []
    for number, part in enumerate(parts):
        rows = max(4, part.slots)
        ragged = 1, part.kv_heads, rows * part.most, dim
        shape = ragged if part.layers else (rows, part.kv_heads, part.most, dim)
        kv = [random(shape, dtype, 2 + 2 * number + n) for n in (0, 1)]
        ours.append(Segment(*(x.to(device, dtype) for x in kv), batch(part, device)))
        twins.append(Segment(*kv, batch(part, 'cpu')))
    for whole, compressed, _ in (ours, twins):
        for segment, is_read in ((whole, (1, 0, 1)), (compressed, (0, 1, 0))):
            bound = enumerate(segment.batch.ids.tolist())
            segment.batch.bind([row if is_read[slot % 3] else PADDING for slot, row in bound])
    out = segments_attention(q.to(device, dtype), ours)
    return difference(out, torch_segments_attention(q, twins))


def stored(case: Case, dim: int, dtype: torch.dtype, device: str) -> float:
    """Return 0 if the same numbers lie in the same places and nothing else was changed."""
    from embodied_kv.kernels.triton_store import store_rows

    def dense(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, batch: RowBatch) -> None:
        dense_store(k, keys, batch)
        dense_store(v, values, batch)

    rows = max(4, case.slots)
    new = [random((case.slots, case.tokens, case.kv_heads, dim), dtype, n) for n in (1, 2)]
    old = [random((rows, case.kv_heads, case.most, dim), dtype, n) for n in (3, 4)]
    theirs = [[part.to(device, dtype) for part in old] for _ in range(2)]
    for store, onto in zip((store_rows, dense), theirs, strict=True):
        store(*(part.to(device, dtype) for part in new), *onto, batch(case, device))
    for ours, rows_of in zip(new, old, strict=True):
        torch_store(ours, rows_of, batch(case, 'cpu'))
    return max(difference(a, b) for made in theirs for a, b in zip(made, old, strict=True))


def dense(case: Case, dim: int, dtype: torch.dtype, device: str) -> float:
    """Return the largest difference for adjacent segments, as compiled code reads rows."""
    q = random((case.slots, case.tokens, case.heads, dim), dtype, 1)
    k, v = (random((case.slots, case.kv_heads, case.most, dim), dtype, n) for n in (2, 3))
    seen = torch.rand(case.slots, 1, case.most, generator=torch.Generator().manual_seed(4)) < 0.7
    seen[..., 0] = True
    out = dense_attention(*(part.to(device, dtype) for part in (q, k, v)), seen.to(device))
    return difference(out, dense_attention(q, k, v, seen))


def statistics(case: Case, dim: int, dtype: torch.dtype, device: str) -> float:
    """Return the largest difference of rows, of columns, and of the counts that are summed.

    The columns are computed from the rows of the counterpart.
    """
    from embodied_kv.kernels import triton_score as kernels

    q = random((case.slots, case.tokens, case.heads, dim), dtype, 1)
    k = random((case.slots, case.kv_heads, case.most, dim), dtype, 2)
    rng = np.random.default_rng(5)
    lengths = torch.from_numpy(rng.integers(1, case.most + 1, case.slots, dtype=np.int32))
    starts = (lengths - case.tokens).clamp(min=0) if case.causal else None
    on = [None if part is None else part.to(device) for part in (lengths, starts)]
    given = [part.to(device, dtype) for part in (q, k)]
    rows = score.torch_row_statistics(q, k, lengths, starts)
    ours = kernels.row_statistics(*given, *on)
    top, total = (part.contiguous().to(device) for part in rows)
    columns, low = kernels.column_statistics(*given, on[0], top, total, P, on[1])
    expected, below = score.torch_column_statistics(q, k, lengths, *rows, P, starts)
    counts = kernels.reduce_counts(low).cpu() - score.torch_reduce_counts(below)
    others = float(counts.abs().max()) / (case.tokens * case.most)
    return max(
        difference(ours[0], rows[0]),
        difference(ours[1] / total, rows[1] / rows[1]),
        difference(columns, expected) / case.tokens,
        others if others > AT_THRESHOLD else 0.0,
    )


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest absolute difference; infinite if one is not a number."""
    apart = (ours.cpu().double() - theirs.cpu().double()).abs()
    return float(apart.nan_to_num(float('inf')).max())


def checks(
    dry: bool, device: str, heads: Sequence[int] = ()
) -> Iterator[tuple[dict[str, object], torch.dtype, Callable[[], float]]]:
    """Yield the facts of a row, its dtype, and the function that finds its error.

    heads: sizes; (): all.
    """
    for dtype in (torch.float32,) if dry else TOLERANCES:  # the interpreter has only this
        for dim in heads or (DRY_DIMS if dry else DIMS):
            for case in DRY_CASES if dry else CASES:
                about = dict(case=case.of, head_dim=dim, dtype=str(dtype).removeprefix('torch.'))
                works = dict(attention=attention)
                if not case.layers:
                    works |= dict(dense=dense, statistics=statistics)
                if not case.layers and not case.causal:
                    works |= dict(segments=segments)
                if case.causal:
                    works |= dict(stored=stored)
                for kernel, work in works.items():
                    found = partial(work, case, dim, dtype, device)
                    yield dict(kernel=kernel) | about, dtype, found


def checked(about: dict[str, object], dtype: torch.dtype, find: Callable[[], float]) -> dict:
    """Return a row; an error of the compiler, or of the card, is a row with the reason."""
    tolerance = 0.0 if about['kernel'] == 'stored' else TOLERANCES[dtype]
    row = about | dict(tolerance=tolerance)
    try:
        error = find()
    except Exception as fault:  # whatever a compiler or a driver may raise
        reason = str(fault).strip().splitlines() or ['']
        why = f'{type(fault).__name__}: {reason[0][:200]}'
        return row | dict(error=None, ok=False, why=why)
    return row | dict(error=error, ok=error <= tolerance, why='')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this stage."""
    add_device(parser)
    parser.add_argument('--heads', type=int, nargs='+', default=(), help='head sizes; all')
    parser.add_argument('--dry', action='store_true', help="few small shapes, by Triton's own CPU")


@torch.inference_mode()
def run(args: argparse.Namespace) -> dict:
    """Check all shapes; with --json, print the results after each, in case of a cut."""
    if args.dry:
        os.environ['TRITON_INTERPRET'] = '1'  # read when triton is imported
    found = dict(ok=True, rows=[])
    for check in checks(args.dry, args.device, args.heads):
        row = checked(*check)
        found['rows'].append(row)
        found['ok'] &= row['ok']
        if args.json:
            print(json.dumps(found), flush=True)
    if not args.json:
        report.show('kernels beside their twins', found['rows'])
    return found


main = command('gpu.kernels', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
