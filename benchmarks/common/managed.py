"""Time of a decode step in addition to the network: binding rows and text.

The network is what the graphs `extend` replay, including the stores of keys and values and the
choice of a greedy token.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

from benchmarks.common import report
from embodied_kv.engine.shapes import Kind
from embodied_kv.runtime.graph_cache import Graph


def seconds_managing(work: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a call without its network; for a CPU, where calls block."""
    network, replay = 0.0, Graph.replay

    def timed(graph: Graph) -> None:
        nonlocal network
        began = time.perf_counter()
        replay(graph)
        if graph.name.startswith(f'{Kind.EXTEND} '):
            network += time.perf_counter() - began

    found = []
    with patch.object(Graph, 'replay', timed):
        for _ in range(repeats):
            network = 0.0
            found.append(report.once(work) - network)
    return statistics.median(found)
