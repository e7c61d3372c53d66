"""The card, its software, and its best rates.

Physics: no phase is faster than its operations over the card's rate of matrix products, nor than
its bytes over its bandwidth; both are measured here, in bfloat16, and the floors of the other
stages are of the same kind.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
from dataclasses import asdict
from importlib import metadata

import torch

from benchmarks.common import clock, report
from benchmarks.common.command import add_device, command
from benchmarks.gpu import toolchain
from benchmarks.gpu.dry import narrow

ASKED = {  # fields of nvidia-smi
    'name': 'name',
    'driver': 'driver_version',
    'power_limit_w': 'power.limit',
    'power_w': 'power.draw',
    'sm_mhz': 'clocks.sm',
    'sm_most_mhz': 'clocks.max.sm',
    'memory_mhz': 'clocks.mem',
    'memory_mib': 'memory.total',
    'temperature_c': 'temperature.gpu',
}
NEEDED = 'torch', 'triton', 'transformers', 'tokenizers', 'safetensors', 'numpy'
COMPILERS = 'gcc', 'clang', 'g++', 'nvcc'  # Triton needs one of the first two, inductor the rest


def card() -> dict[str, str]:
    """Return the facts of the first card by nvidia-smi; clocks and power are those of now."""
    query = ','.join(ASKED.values())
    words = ['nvidia-smi', f'--query-gpu={query}', '--format=csv,noheader,nounits']
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return dict(name=f'unknown: {error}')
    values = [value.strip() for value in said.stdout.splitlines()[0].split(',')]
    return dict(zip(ASKED, values, strict=True))


def properties() -> dict[str, object]:
    """Return the properties of the card by torch."""
    p = torch.cuda.get_device_properties(0)
    return dict(
        capability=f'{p.major}.{p.minor}',
        multiprocessors=p.multi_processor_count,
        shared_memory_bytes=p.shared_memory_per_block_optin,
        l2_bytes=p.L2_cache_size,
        bytes=p.total_memory,
    )


def software() -> dict[str, str]:
    """Return versions, and the names of the installed compilers."""
    found = dict(python=platform.python_version(), cuda=str(torch.version.cuda))
    for name in NEEDED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = 'missing'
    found['compilers'] = ', '.join(filter(shutil.which, COMPILERS)) or 'none'
    found['cuda_home'] = str(toolchain.cuda_home() or 'not found')
    found['mps'] = os.environ.get('CUDA_MPS_PIPE_DIRECTORY', 'not asked for')
    return found


def run(args: argparse.Namespace) -> dict:
    """Measure, print the table, and return all figures."""
    before = card()
    if args.device == 'cuda':
        before |= properties()
    with narrow(args.dry):
        best = clock.ceilings(args.device, 1 if args.dry else 10)
    found = dict(
        card=before,
        software=software(),
        ceilings=asdict(best),
        busy=card(),
        processor=report.machine(args.device),
    )
    if not args.json:
        facts = before | found['software'] | found['ceilings']
        rows = [dict(fact=name, value=value) for name, value in facts.items()]
        report.show('the machine', rows)
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this stage."""
    add_device(parser)
    parser.add_argument('--dry', action='store_true', help='ceilings of small matrices')


main = command('gpu.facts', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
