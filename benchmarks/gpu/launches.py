"""The kernels that a piece of work launches on the device, and their times, by torch.profiler.

On a CPU, for a dry run, operators are counted instead of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

COPIES = 'Memcpy', 'Memset'


@dataclass
class Kernel:
    """A kernel: how often it was launched, and us in all."""

    name: str
    launches: int = 0
    us: float = 0.0

    @property
    def is_copy(self) -> bool:
        """Return whether it moves or fills bytes, and computes nothing."""
        return self.name.startswith(COPIES)


def kernels(work: Callable[[], object], device: str) -> list[Kernel]:
    """Return the kernels of one call, after a warm-up call; the longest first."""
    work()
    cuda = device == 'cuda'
    if cuda:
        torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        work()
        if cuda:
            torch.cuda.synchronize()
    own = DeviceType.CUDA if cuda else DeviceType.CPU
    found: dict[str, Kernel] = {}
    for event in profiler.events():
        if event.device_type == own and not event.is_user_annotation:
            kernel = found.setdefault(event.name, Kernel(event.name))
            kernel.launches += 1
            kernel.us += event.time_range.elapsed_us() if cuda else event.self_cpu_time_total
    return sorted(found.values(), key=lambda kernel: -kernel.us)


def counted(found: list[Kernel]) -> int:
    """Return the launches of kernels that compute."""
    return sum(kernel.launches for kernel in found if not kernel.is_copy)
