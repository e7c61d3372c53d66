"""Where the time of each phase goes, kernel by kernel.

Physics: `gap` is the share of a phase in which no kernel runs: launches, and the host. A kernel's
share is of the time in which kernels run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from benchmarks import parts
from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.gpu.launches import Kernel, counted, kernels
from benchmarks.gpu.real import BATCHES, add_model, engine, random_policy

MOST = 12  # kernels of a phase
NAMED = 90  # characters of a kernel's name


def longest(phase: str, found: list[Kernel], calls: int) -> Iterator[dict]:
    """Yield the rows of a phase; calls: units of it in what was profiled."""
    whole = sum(kernel.us for kernel in found) or 1.0
    for kernel in found[:MOST]:
        yield dict(
            phase=phase,
            kernel=kernel.name[:NAMED],
            launches=kernel.launches / calls,
            us=kernel.us / calls,
            share_pct=100 * kernel.us / whole,
        )


@torch.inference_mode()
def run(args: argparse.Namespace) -> dict:
    """Profile each phase once, print the table, and return all figures."""
    (views,) = args.views
    with torch.inference_mode(False):  # weights and traces as when serving
        policy = random_policy(args)
    made = engine(policy, views, 'captured', args.device)
    phases, rows = [], []
    for phase, work, calls, _ in parts.phases(made, 1, BATCHES):
        found = kernels(work, args.device)
        took = 1e6 * report.once(work, args.device)
        busy = sum(kernel.us for kernel in found)
        phases.append(
            dict(
                phase=phase,
                ms=took / calls / 1e3,
                kernels_ms=busy / calls / 1e3,
                gap_pct=100 * max(0.0, 1 - busy / took),
                launches=counted(found) / calls,
            )
        )
        rows += longest(phase, found, calls)
    if not args.json:
        report.show(f'phases, {args.preset}, {args.device}', phases)
        report.show('their longest kernels', rows)
    return dict(phases=phases, rows=rows)


main = command('gpu.top', __doc__, add_model, run)

if __name__ == '__main__':
    main()
