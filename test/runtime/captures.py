"""Captures of functions over buffers, for tests that have no rows."""

from benchmarks.common.declared_writes import DeclaredWrites
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import StepInputs


class NoRows:
    """A view without anything to bind."""

    fits_compiled, buffers = True, ()

    def __init__(self):
        self.inputs = StepInputs('cpu', {})


class WatchedGraphs(GraphCache):
    """A cache that proves the declared writes of each computation."""

    watch = DeclaredWrites


watched = WatchedGraphs


def capture(cache, name, fn, writes, **more):
    return cache.capture(Shape(name, 1), lambda _: fn(), NoRows(), writes=list(writes), **more)
