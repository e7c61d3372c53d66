"""What the capsule benchmark measures beside times of its own: tails, bandwidths, equal bytes.

Physics: a snapshot reads and writes each byte of a capsule once, and so does a restore; a plain
copy of as many bytes from one touched buffer into another is the floor of both. A snapshot also
has to get memory, as a plain clone has; here that of the capsule that was dropped before it. All
four are taken in turn, so that none finds warmer caches than the others. What is lost beside them
is a fixed cost: Python around some ten tensors and their checks; so small capsules, and copies
that more threads or a cache make fast, lose most.
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

WARM_UP = 3  # rounds; after two restores a session stands on adopted rows alone
MB = 1e6


class Stores:
    """Capsules of one engine, with a planner in them or not; a benchmark is the engine's thread.

    device: of the engine.
    """

    def __init__(self, engine: Engine, planner: Part | None = None, device: str = 'cpu') -> None:
        self._engine, self._planner, self.device = engine, planner, device
        self._fingerprint = fingerprint(engine)

    def open(
        self, capacities: TierCapacities | None = None, disk: Disk | None = None
    ) -> RobotSession:
        """An empty store of bounded size."""
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
    """Of the session as it stands, with one thread, as an engine has by default, and with all.

    copy: into touched memory. clone: into new memory. `A_of_B`: the bandwidth of A over that of B.
    `A_engine_ms`: what A took of the engine's thread; the rest is the caller's and the registry's.
    """
    most = torch.get_num_threads()
    try:
        return [_copies(capsules, repeats, device, threads) for threads in sorted({1, most})]
    finally:
        torch.set_num_threads(most)


def _copies(capsules: RobotSession, repeats: int, device: str, threads: int) -> dict[str, float]:
    """Snapshot and restore in turn with plain copies; medians."""
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
    """Return what a snapshot copies: a file has a header and facts in addition."""
    return sum(tensor.nbytes for tensor in capsule.tensors.values())


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
