"""Shared by all benchmarks: the machine, its ceilings, a table, a JSON line, a file.

Physics: a phase can be no faster than its operations over the machine's matrix rate, nor than its
bytes over the machine's bandwidth. Both ceilings are measured here, in the same process, not
looked up.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common import clock
from benchmarks.common.reading import products, readings

OUT = Path('out/bench')
Timer = Callable[[], float]  # a clock (s)
# CPU flags of `torch.cpu.get_capabilities` that decide how fast it multiplies, x86 then Arm.
FLAGS = (
    *('avx2', 'fma3', 'avx512_f', 'avx512_vnni', 'avx512_bf16', 'avx512_fp16', 'amx_bf16'),
    *('amx_fp16', 'fp16_arith', 'sve', 'sve2', 'bf16', 'i8mm'),
)


def machine(device: str = 'cpu') -> dict:
    """Return facts of the machine. load: of the whole machine, over the last minute."""
    name = platform.processor() or platform.machine()
    if os.path.exists('/proc/cpuinfo'):
        lines = Path('/proc/cpuinfo').read_text().splitlines()
        name = next(
            (x.split(':', 1)[1].strip() for x in lines if x.startswith('model name')), name
        )
    facts = dict(
        cpu=name,
        cpu_flags=[flag for flag in FLAGS if torch.cpu.get_capabilities().get(flag)],
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        python=platform.python_version(),
        device=device,
        load=os.getloadavg()[0],
    )
    if device == 'cuda':
        facts['gpu'] = torch.cuda.get_device_name()
    return facts


def once(
    work: Callable[[], object], device: str = 'cpu', timer: Timer = time.perf_counter
) -> float:
    """Return the seconds of one call, wall time by default; on CUDA until the device is done."""
    began = timer()
    work()
    if device == 'cuda':
        torch.cuda.synchronize()
    return timer() - began


def seconds(
    work: Callable[[], object],
    repeats: int = 5,
    warmup: int = 1,
    device: str = 'cpu',
    timer: Timer = time.perf_counter,
) -> float:
    """Return the median seconds of one call, after warm-up; wall time by default."""
    for _ in range(warmup):
        work()
    return statistics.median(once(work, device, timer) for _ in range(repeats))


def difference(
    work: Callable[[], object],
    other: Callable[[], object],
    repeats: int,
    device: str = 'cpu',
    timer: Timer = time.perf_counter,
) -> float:
    """Return the seconds that a call takes more than the other: median over pairs in turn."""
    pairs = [(once(work, device, timer), once(other, device, timer)) for _ in range(repeats + 1)]
    return statistics.median(a - b for a, b in pairs[1:])


def ceilings(dtype: torch.dtype, device: str = 'cpu') -> dict[str, float]:
    """Measure matrix rate (GFLOP/s) and read bandwidth (GB/s), each by the fastest way."""
    timer = clock.timer(device)
    calls, operations = products(dtype, device)
    rate = operations / min(seconds(work, device=device, timer=timer) for work in calls.values())
    reads = readings(dtype, device).values()
    moved = max(size / seconds(work, device=device, timer=timer) for work, size in reads)
    return dict(gflops=rate / 1e9, gbytes=moved / 1e9)


@contextmanager
def ceilings_around(dtype: torch.dtype, device: str = 'cpu') -> Iterator[dict[str, float]]:
    """Yield the ceilings of the machine; after the block, the higher of before and after.

    Other work on a shared machine hides a ceiling now and then.
    """
    found = ceilings(dtype, device)
    yield found
    for name, after in ceilings(dtype, device).items():
        found[name] = max(found[name], after)


def show(title: str, rows: Sequence[dict], note: str = '') -> None:
    """Print rows of equal keys as a table."""
    table = Table(title=title, title_justify='left', caption=note or None, caption_justify='left')
    for name in rows[0]:
        table.add_column(name.replace('_', ' '), justify='right')
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    Console(width=None if os.isatty(1) else 160).print(table)


def _cell(value: object) -> str:
    if value is None:
        return ''
    return f'{value:.4g}' if isinstance(value, float) else str(value)


def save(name: str, result: dict) -> None:
    """Write out/bench/NAME.json and print the same as one line, last."""
    OUT.mkdir(parents=True, exist_ok=True)
    line = json.dumps(result)
    (OUT / f'{name}.json').write_text(line + '\n')
    print(line)
