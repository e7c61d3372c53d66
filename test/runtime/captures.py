"""Capture functions over buffers, for tests without rows."""

from benchmarks.common.declared_writes import DeclaredWrites
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import StepInputs


class NoRows:
    """A view with nothing to bind."""

    fits_compiled, buffers = True, ()

    def __init__(self):
        self.inputs = StepInputs('cpu', {})


class WatchedGraphs(GraphCache):
    """A cache that checks the declared writes of each computation."""

    watch = DeclaredWrites


watched = WatchedGraphs


def capture(cache, name, fn, writes, **more):
    return cache.capture(Shape(name, 1), lambda _: fn(), NoRows(), writes=list(writes), **more)
