"""Percentiles, copy bandwidths and byte equality for the capsule benchmark.

Physics: a snapshot reads and writes each byte of a capsule once, and so does a restore. A plain
copy of as many bytes from one touched buffer into another is the lower bound of both. A snapshot
also allocates memory, as a plain clone does; here it gets the memory of the capsule that was
dropped before it. All four are measured in turn, so that none finds warmer caches than the others.
The remaining loss is a fixed cost: Python code around about ten tensors and their checks. Small
capsules, and copies that several threads or a cache make fast, therefore lose most.
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

from benchmarks.common.report import once
from embodied_kv.capsule.capsule import Capsule, Part
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import TierCapacities
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.robot_session import RobotSession

WARM_UP = 3  # rounds; after two restores a session uses adopted rows only
MB = 1e6


class Stores:
    """Capsules of one engine, with or without a planner; the caller acts as the engine thread.

    device: of the engine.
    """

    def __init__(self, engine: Engine, planner: Part | None = None, device: str = 'cpu') -> None:
        self._engine, self._planner, self.device = engine, planner, device
        self._fingerprint = fingerprint(engine)

    def open(
        self, capacities: TierCapacities | None = None, disk: Disk | None = None
    ) -> RobotSession:
        """Return an empty session over a registry of bounded size."""
        registry = Registry(self._fingerprint, capacities, disk, device=self.device)
        capsules = RobotSession(EnginePart(self._engine), registry, _at_once)
        if self._planner is not None:
            capsules.register(self._planner)
        return capsules


def _at_once(work) -> Future:
    future: Future = Future()
    future.set_result(work())
    return future


def copies(capsules: RobotSession, repeats: int, device: str) -> list[dict[str, float]]:
    """Measure copies of the session's state, with one thread (the engine default) and with all.

    copy: into touched memory. clone: into new memory. `A_of_B`: the bandwidth of A over that of B.
    `A_engine_ms`: time of A on the engine thread; the caller and the registry take the rest.
    """
    most = torch.get_num_threads()
    try:
        return [_copies(capsules, repeats, device, threads) for threads in sorted({1, most})]
    finally:
        torch.set_num_threads(most)


def _copies(capsules: RobotSession, repeats: int, device: str, threads: int) -> dict[str, float]:
    """Return medians of snapshots and restores that alternate with plain copies."""
    torch.set_num_threads(threads)
    capsule, _ = capsules.snapshot('kept')
    size = tensor_bytes(capsule)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    times, engine = defaultdict(list), defaultdict(list)

    def snapshot() -> None:
        made, seconds = capsules.snapshot('again')
        engine['snapshot'].append(seconds)
        same = tensor_bytes(made) == size
        assert same or len(engine['snapshot']) <= WARM_UP, 'the session has changed'

    def restore() -> None:
        engine['restore'].append(capsules.rollback('kept').seconds)

    for _ in range(WARM_UP + repeats):
        times['snapshot'].append(once(snapshot, device))
        capsules.registry.drop('again')
        times['restore'].append(once(restore, device))
        times['copy'].append(once(lambda: target.copy_(source), device))
        times['clone'].append(once(source.clone, device))
    capsules.registry.drop('kept')
    took = {name: statistics.median(seconds[WARM_UP:]) for name, seconds in times.items()}
    of_engine = {name: statistics.median(seconds[WARM_UP:]) for name, seconds in engine.items()}
    return dict(
        threads=threads,
        mb=size / MB,
        **{f'{name}_ms': seconds * 1e3 for name, seconds in took.items()},
        **{f'{name}_engine_ms': seconds * 1e3 for name, seconds in of_engine.items()},
        **{f'{name}_gbs': size / seconds / 1e9 for name, seconds in took.items()},
        snapshot_of_copy=took['copy'] / took['snapshot'],
        restore_of_copy=took['copy'] / took['restore'],
        snapshot_of_clone=took['clone'] / took['snapshot'],
    )


def tensor_bytes(capsule: Capsule) -> int:
    """Return the bytes of tensors, which a snapshot copies; a file also has a header and facts."""
    return sum(tensor.nbytes for tensor in capsule.tensors.values())


def tail(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Return the 50th, 90th and 99th percentiles in ms, interpolated between samples."""
    values = np.percentile(seconds, (50, 90, 99)) * 1e3
    return {f'{name}_p{p}_ms': float(value) for p, value in zip((50, 90, 99), values, strict=True)}


def assert_same(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise AssertionError unless names, shapes and bytes agree."""
    assert state.keys() == expected.keys(), 'other tensors than those of a cold prefill'
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), f'{name} differs from that of a cold prefill'


def peak_mb(device: str) -> dict[str, float]:
    """Return the peak memory so far (MB): of the process (ru_maxrss), and of the GPU.

    The peak of the process includes weights, libraries and all buffers.
    """
    peak = dict(peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB)
    if device == 'cuda':
        peak['peak_cuda_mb'] = torch.cuda.max_memory_allocated() / MB
    return peak
