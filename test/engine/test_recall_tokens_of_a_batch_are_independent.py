"""A robot with KV that is not finite does not affect the recall tokens of later batches."""

import math

import numpy as np
import torch

LONG, SHORT = 'reach the object that was reached before', 'up'


def remembering(make_engine, observe):
    """Return an engine whose robots a, b and c have a memory row each."""
    engine = make_engine(memory_rows=2, memory_keep_ratio=1.0)
    for number, robot in enumerate('abc'):
        engine.prefill([observe(number, robot=robot, instruction='reach')])
        engine.prefill([observe(10 + number, robot=robot, instruction=LONG)])
    return engine


def acted(engine, observe):
    """Return the chunks of b and c, in one batch, of which b has the shorter instruction."""
    seen = [observe(20, robot='b', instruction=SHORT), observe(21, robot='c', instruction=LONG)]
    handles = engine.prefill(seen)
    leases = [engine.kv.acquire(handle) for handle in handles]
    c = engine.policy.config
    noises = np.ones((2, c.chunk_size, c.padded_action_dim), np.float32)
    try:
        return engine.denoise(leases, [math.inf] * 2, noises=noises)
    finally:
        for lease in leases:
            lease.release()


def test_a_robot_with_nan_in_its_memory_harms_no_later_batch(make_engine, observe):
    expected = acted(remembering(make_engine, observe), observe)
    engine = remembering(make_engine, observe)
    with torch.inference_mode():
        engine.memory.rows('a')[0].k.fill_(math.nan)
    engine.prefill([observe(30, robot='a', instruction=LONG)])
    for chunk, wanted in zip(acted(engine, observe), expected, strict=True):
        assert np.array_equal(chunk.values, wanted.values)
