"""Accuracy of a judge by segments, layout and hops, under full prefill and full reuse.

Full reuse is the control: a judge that is as accurate without attention between segments cannot
distinguish methods of KV reuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from embodied_kv.model.planner import Planner
from training.evaluate.report import rate
from training.judge.chains import ASK, LAYOUTS, MAX_HOPS, Chains, at, draw_chains
from training.judge.lessons import answers, read
from training.judge.view import JudgeView

AT_ONCE = 250  # problems in a batch
SIZES = (8, 16, 32, 64)
HOPS = range(MAX_HOPS + 1)


@torch.no_grad()
def exam(
    model: Planner, problems: int, seed: int, sizes: Sequence[int] = SIZES, isolated: bool = False
) -> list[dict]:
    """Return a row per cell: segments, layout, hops, and the accuracy with its interval.

    isolated: segments see only themselves, as under full reuse. Each cell has its own problems,
    the same ones for every model and for both values of `isolated`.
    """
    rows = []
    for size, layout, hops in cells(sizes):
        right, view = 0, JudgeView(size, 1, isolated)
        chains = draw_cell(problems, seed, size, layout, hops)
        for ids, answer in zip(*(x.split(AT_ONCE) for x in problems_of(chains)), strict=True):
            said = answers(model, read(model, ids, view), view)[:, 0].argmax(-1)
            right += int((said == answer).sum())
        rows.append(dict(segments=size, layout=layout, hops=hops, right=rate(right, problems)))
    return rows


def cells(sizes: Sequence[int] = SIZES) -> Iterator[tuple[int, str, int]]:
    """Yield segments, layout and hops of each cell."""
    for size in sizes:
        for layout in LAYOUTS:
            for hops in HOPS:
                yield size, layout, hops


def draw_cell(problems: int, seed: int, segments: int, layout: str, hops: int) -> Chains:
    """Draw the problems of a cell, the same ones for every model."""
    rng = np.random.default_rng((seed, segments, LAYOUTS.index(layout), hops))
    return draw_chains(rng, problems, segments, hops, layout)


def problems_of(chains: Chains) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts that ask for `start`, long [B, 3 + 2 S], and their answers, long [B]."""
    start = chains.start[:, None]
    ask = np.full_like(start, ASK)
    ids = np.concatenate([chains.memory, ask, at(chains.keys, start)], axis=1)
    return torch.from_numpy(ids), torch.from_numpy(at(chains.answers, start)[:, 0])


def total(rows: Sequence[dict], **cell: object) -> dict:
    """Return the rate over all rows whose fields equal those of `cell`."""
    some = [r['right'] for r in rows if all(r[name] == value for name, value in cell.items())]
    return rate(sum(r['k'] for r in some), sum(r['n'] for r in some))


def show(title: str, rows: Sequence[dict]) -> None:
    """Print a table in percent: a line per segments and layout, a column per number of hops."""
    table = Table(title=title)
    for name in ('segments', 'layout', *(f'{h} hops' for h in HOPS)):
        table.add_column(name, justify='right')
    for size, layout in dict.fromkeys((r['segments'], r['layout']) for r in rows):
        line = [total(rows, segments=size, layout=layout, hops=hops) for hops in HOPS]
        table.add_row(str(size), layout, *(f'{100 * c["k"] / c["n"]:.2f}' for c in line))
    Console().print(table)
