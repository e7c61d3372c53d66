"""What graphs read outside the cache is written before each replay, so stale bytes do no harm."""

import math

import numpy as np
import torch
from capsule_sessions import QUESTIONS, scratch


@torch.inference_mode()
def soil(engine):
    """Overwrite everything that graphs read or write, except the cache."""
    for buffer in scratch(engine):
        buffer.tensor.fill_(math.nan if buffer.tensor.is_floating_point() else 1)


def lived(engine, observe, dirty):
    """Return chunks and tokens of four rounds with one to three robots.

    `dirty` is called before each prefill, denoising and decode step.
    """
    made = []
    for number, robots in enumerate((1, 3, 1, 2)):
        dirty(engine)
        frames = [observe(number * 10 + r, robot=f'r{r}', missing=()) for r in range(robots)]
        handles = engine.prefill(frames)
        leases = [engine.kv.acquire(handle) for handle in handles]
        dirty(engine)
        chunks = engine.denoise(leases, [math.inf] * robots)
        made += [chunk.values for chunk in chunks]
        for lease in leases:
            lease.release()
        engine.open(handles[-1], QUESTIONS[number % 3], max_tokens=5)
        for _ in range(3):
            dirty(engine)
            made += [np.array(delta.tokens) for delta in engine.decode()]
    made += [np.array(stream.tokens) for stream in engine.kv.streams.live()]
    return made


def test_soiled_scratch_changes_no_byte(make_engine, observe):
    clean = lived(make_engine(), observe, lambda engine: None)
    soiled = lived(make_engine(), observe, soil)
    assert len(clean) == len(soiled) > 12
    assert all(np.array_equal(a, b) for a, b in zip(clean, soiled, strict=True))


def test_what_is_soiled_is_no_small_part(make_engine):
    engine = make_engine()
    soil(engine)
    names = {buffer.name for buffer in engine.graphs.buffers}
    inputs = {
        'pixels',
        'noise',
        'temperatures',
        'shares',
        'image_tokens',
        'text',
        'source',
        'x',
        'schedule_index',
        'cos',
        'sin',
        'ids',
    }
    assert inputs <= names
    assert torch.isnan(engine._denoiser._x).all()
