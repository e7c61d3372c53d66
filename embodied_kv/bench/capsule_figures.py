"""What the capsule benchmark measures beside times of its own: tails, bandwidths, equal bytes.

Physics: a snapshot reads and writes each byte of a capsule once, and so does a restore; a plain
copy of as many bytes from one touched buffer into another is the floor of both. A snapshot also
has to get new memory, as a plain clone has. All four are taken in turn, so that none finds warmer
caches than the others. What is lost beside them is a fixed cost: some 40 tensors, each a call, and
their checks; so small capsules lose most.
"""

from __future__ import annotations

import resource
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np
import torch
from torch import Tensor

from embodied_kv.bench.report import once
from embodied_kv.capsule.part import Part
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Budgets
from embodied_kv.engine.capsules import Capsules
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint

WARM_UP = 3  # rounds; after two restores a session stands on adopted rows alone
MB = 1e6


class Stores:
    """Capsules of one engine, with a planner in them or not; a benchmark is the engine's thread.

    device: of the engine.
    """

    def __init__(self, engine: Engine, planner: Part | None = None, device: str = 'cpu') -> None:
        self._engine, self._planner, self.device = engine, planner, device
        self._fingerprint = fingerprint(engine)

    def open(self, budgets: Budgets | None = None) -> Capsules:
        """An empty store of bounded size."""
        registry = Registry(self._fingerprint, budgets, device=self.device)
        capsules = Capsules(self._engine, registry, _at_once)
        if self._planner is not None:
            capsules.register(self._planner)
        return capsules


def _at_once(work) -> Future:
    future: Future = Future()
    future.set_result(work())
    return future


def copies(capsules: Capsules, repeats: int, device: str) -> dict[str, float]:
    """Snapshot and restore of the session as it stands, in turn with plain copies; medians.

    copy: into touched memory. clone: into new memory. `A_of_B`: the bandwidth of A over that of B.
    """
    capsule, _ = capsules.snapshot('kept')
    source = torch.ones(capsule.bytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    times = defaultdict(list)
    for number in range(WARM_UP + repeats):
        times['snapshot'].append(once(lambda: capsules.snapshot('again'), device))
        same = capsules.registry.get('again').bytes == capsule.bytes
        assert same or number < WARM_UP, 'the session has changed'
        capsules.registry.drop('again')
        times['restore'].append(once(lambda: capsules.rollback('kept'), device))
        times['copy'].append(once(lambda: target.copy_(source), device))
        times['clone'].append(once(source.clone, device))
    capsules.registry.drop('kept')
    took = {name: statistics.median(seconds[WARM_UP:]) for name, seconds in times.items()}
    return dict(
        mb=capsule.bytes / MB,
        **{f'{name}_ms': seconds * 1e3 for name, seconds in took.items()},
        **{f'{name}_gbs': capsule.bytes / seconds / 1e9 for name, seconds in took.items()},
        snapshot_of_copy=took['copy'] / took['snapshot'],
        restore_of_copy=took['copy'] / took['restore'],
        snapshot_of_clone=took['clone'] / took['snapshot'],
    )


def tail(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in ms; between two samples they are interpolated."""
    values = np.percentile(seconds, (50, 90, 99)) * 1e3
    return {f'{name}_p{p}_ms': float(value) for p, value in zip((50, 90, 99), values, strict=True)}


def assert_same(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raises AssertionError unless names, shapes and bytes agree."""
    assert state.keys() == expected.keys(), 'other tensors than those of a cold prefill'
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), f'{name} differs from that of a cold prefill'


def peak_mb(device: str) -> dict[str, float]:
    """Peak memory so far: of the process as the kernel counts it (ru_maxrss), and of the GPU.

    The first has weights, libraries and all buffers in it.
    """
    peak = dict(peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB)
    if device == 'cuda':
        peak['peak_cuda_mb'] = torch.cuda.max_memory_allocated() / MB
    return peak
