"""What a decode step takes beside the network: binding rows, storing keys and values, text.

The network is what the graphs `extend` replay, the choice of a greedy token included, less what
they store into rows behind it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

from benchmarks.common import report
from embodied_kv.engine.graphs import Kind
from embodied_kv.kv.joint import JointTail
from embodied_kv.runtime.graph import Graph


def seconds_managing(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call, less those of the network in it. On a CPU, where calls wait."""
    network = 0.0

    def counted(call: Callable[..., None], sign: int) -> Callable[..., None]:
        def run(self: object, *args: object) -> None:
            nonlocal network
            began = time.perf_counter()
            call(self, *args)
            if sign < 0 or self.name.startswith(f'{Kind.EXTEND} '):
                network += sign * (time.perf_counter() - began)

        return run

    found = []
    with (
        patch.object(Graph, 'replay', counted(Graph.replay, 1)),
        patch.object(JointTail, 'keep', counted(JointTail.keep, -1)),
    ):
        for _ in range(repeats):
            network = 0.0
            found.append(report.once(work) - network)
    return statistics.median(found)
