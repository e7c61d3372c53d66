"""Warm-up: the engine runs everything twice, and keeps the latencies of the second run.

First runs include allocation, compilation and cold caches; an estimate that counts them plans too
few Euler steps for a whole window. If one run takes longer than LONG, these costs are small
against it, and there is no second one, which would delay the start. Warm-up leaves no row in use.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from embodied_kv.engine.engine import Engine
from embodied_kv.engine.shapes import ALIGNED, doubling
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.types import Observation

ROBOT = 'warm-up'
QUERY = 'Subtask:'
LONG = 10.0  # s


def warm_up(engine: Engine) -> None:
    """Prefill, denoise, begin queries of all lengths, and decode batches of all sizes.

    Call it on the engine thread before anything else runs. Raises what the engine raises.
    """
    began, budget = time.monotonic(), engine.budget
    limits, budget.enabled = budget.enabled, False  # no unit waits for idle time
    try:
        _rehearse(engine)
        if time.monotonic() - began <= LONG:
            engine.latency.clear()
            _rehearse(engine)
    finally:
        budget.enabled = limits
    engine.forget(ROBOT)
    if (handle := engine.kv.frames.current(ROBOT)) is not None:
        engine.kv.frames.retire(handle)


def _rehearse(engine: Engine) -> None:
    frame = blank(engine)
    if engine.config.memory_rows:  # the next frame reads a memory row of another instruction
        other = frame.instruction.replace('x', 'y')
        engine.prefill([replace(frame, sequence=1, instruction=other)])
    (handle,) = engine.prefill([frame])
    with engine.kv.acquire(handle) as lease:
        _denoise(engine, lease)
        _begin_all(engine, handle)
        for size in doubling(engine.config.streams):
            _decode(engine, handle, size)


def blank(engine: Engine) -> Observation:
    """Return a black frame with the longest prompt, whose deadline is over."""
    policy, size = engine.policy, engine.policy.config.vision.image_size
    return Observation(
        images=(np.zeros((size, size, 3), np.uint8),) * len(policy.config.views),
        state=policy.rest(),
        instruction='x ' * policy.config.max_text,
        stamp=0,
        deadline=-math.inf,
        sequence=0,
        robot=ROBOT,
    )


def _denoise(engine: Engine, lease: Lease) -> None:
    """Run all Euler steps, which an infinite deadline permits, with each number of candidates."""
    for number in doubling(engine.config.chunk_candidates):
        for chunk in engine.candidates(lease, range(number)):
            if isinstance(chunk, Exception):
                raise chunk


def _begin_all(engine: Engine, handle: KvHandle) -> None:
    """Begin streams of 1, 2, 4 ... units of query length and of the longest, and compress them."""
    after = engine.config.compression_after_tokens
    longest = engine.config.decode_tokens - after - 1
    for steps in doubling(-(-longest // ALIGNED)):
        ids = (0,) * min(steps * ALIGNED, longest)
        for said in sorted({0, after}):
            _resume(engine, handle, Query(QUERY, ids, max_tokens=said + 1), said)
            engine.decode()


def _decode(engine: Engine, handle: KvHandle, size: int) -> None:
    """Begin `size` streams and take one step of all."""
    after = engine.config.compression_after_tokens
    half = (engine.config.decode_tokens - after) // 2
    ids = engine.policy.tokenizer.encode(QUERY[: half - 1])
    query = Query(QUERY, ids, max_tokens=after + min(3, half))
    streams = [_resume(engine, handle, query, after) for _ in range(size)]
    while engine.next_batch()[1]:  # each begins, and is compressed, alone
        engine.decode()
    engine.decode()
    for stream in streams:
        engine.kv.streams.release(stream, 'cancelled')
    engine.deltas()


def _resume(engine: Engine, handle: KvHandle, query: Query, said: int) -> DecodeStream:
    """Return a stream with so many tokens already, because a generated answer may end at once.

    Its decode row is written when it is compressed.
    """
    return engine.kv.resume(engine.kv.acquire(handle, LANGUAGE), query, (0,) * said)
