"""All graphs are captured when the engine is made; frames, streams and capsules capture none."""

import math

from capsule_sessions import begin, capsules_of, go_on

from embodied_kv.engine.shapes import Kind
from embodied_kv.engine.warmup import warm_up
from embodied_kv.runtime.graph_cache import Shape
from embodied_kv.session.engine_part import Branch


def test_no_verb_of_engine_or_capsules_captures(make_engine, observe):
    engine = make_engine()
    captures = engine.graphs.captures
    warm_up(engine)
    capsules = capsules_of(engine)
    begin(engine, observe(1))
    capsules.snapshot('here')
    with engine.kv.acquire(engine.kv.frames.current()) as lease:
        engine.denoise([lease], [math.inf])
    engine.decode()
    capsules.rollback('here')
    capsules.fork('here', [Branch(seed=1), Branch(seed=2)])
    capsules.replay('here')
    capsules.fork_chunk('here', [Branch(seed=1), Branch(seed=2)])
    capsules.restore('here', None)
    go_on(engine)
    assert engine.graphs.captures == captures == len(engine.graphs)


def test_graphs_are_replayed_whatever_the_step_count(make_engine, observe):
    engine = make_engine(min_euler_steps=2, euler_steps=4)
    (handle,) = engine.prefill([observe(1)])
    graph = engine.graphs[Shape(Kind.DENOISE, 1)]
    with engine.kv.acquire(handle) as lease:
        for steps in (2, 3, 4):
            engine.budget.euler_steps, before = steps, graph.replays
            (chunk,) = engine.denoise([lease], [math.inf])
            assert (chunk.steps, graph.replays - before) == (steps, steps)
