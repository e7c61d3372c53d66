"""Operations on frames: prefill, denoise, supersede, lease, expire, and impossible requests.

Knows the engine thread and leases. Does not know language, capsules or memory.
"""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from random import Random

import numpy as np

from benchmarks.soak.faults import InjectedError
from benchmarks.soak.outcome import DeclinedError, must_refuse
from benchmarks.soak.world import ROBOTS, World
from embodied_kv.config import TINY
from embodied_kv.kv.handle import KvHandle, StaleHandleError
from embodied_kv.types import ActionChunk, Observation

HELD = 3  # maximum number of leases that are held longer than a frame
ODD_IMAGE = np.zeros((4, 4), np.uint8)


def frame(world: World, random: Random) -> None:
    """Prefill a frame and, half of the time, denoise a chunk."""
    handle = world.wait(world.device.prefill(_observe(world, random)))
    world.handles.append(handle)
    if random.random() < 0.5:
        _act(world, random, handle)


def racing_frame(world: World, random: Random) -> None:
    """Submit the action in the completion of the prefill, as the nodes do, without waiting."""
    deadline = _deadline(random)

    def begin(prefilled: Future) -> None:
        if prefilled.cancelled() or prefilled.exception() is not None:
            return
        world.handles.append(prefilled.result())
        lease = world.kv.acquire(prefilled.result())
        chunk = world.ledger.promise(world.device.denoise(lease, deadline))
        chunk.add_done_callback(lambda _: lease.release())

    def fail(_: Future) -> None:
        raise InjectedError('the code that waits for a frame fails')

    future = world.ledger.promise(world.device.prefill(_observe(world, random)))
    future.add_done_callback(fail)
    future.add_done_callback(begin)


def superseded_frame(world: World, random: Random) -> None:
    """Submit two frames of a robot at once: the newer one counts."""
    robot = random.choice(ROBOTS)
    older, newer = (
        world.ledger.promise(world.device.prefill(world.observe(random, robot))) for _ in range(2)
    )
    try:
        world.wait(older)
    except CancelledError:
        pass
    finally:
        world.handles.append(world.wait(newer))


def batch(world: World, random: Random) -> None:
    """Serve frames of two robots in one batch, as a fleet does."""
    seen = [world.observe(random, robot) for robot in random.sample(ROBOTS, 2)]
    handles = world.wait(world.device.call(lambda: world.engine.prefill(seen)))
    world.handles.extend(handles)
    deadlines = [_deadline(random)] * 2

    def act() -> list[ActionChunk]:
        with world.kv.frames.leases(handles) as leases:
            return world.engine.denoise(leases, deadlines)

    _check(*world.wait(world.device.call(act)))


def impossible_frame(world: World, random: Random) -> None:
    """Submit a frame without images, of wrong shapes or not finite, or an invalid batch."""
    robot, size = random.choice(ROBOTS), TINY.vision.image_size
    good = np.zeros((size, size, 3), np.uint8)
    odd = random.choice(
        [
            dict(images=(None, None)),
            dict(images=(good,)),
            dict(images=(good, ODD_IMAGE)),
            dict(images=(good.astype(np.float32), None)),
            dict(images=(good[:0], None)),
            dict(state=np.zeros(TINY.state_dim + 1, np.float32)),
            dict(state=np.full(TINY.state_dim, np.nan, np.float32)),
        ]
    )
    bad, fine = world.observe(random, robot, **odd), world.observe(random, robot)
    batches = [[bad], [], [fine, fine], [fine, bad], [fine] * 5]
    seen = random.choice(batches)
    must_refuse(lambda: world.wait(world.device.call(lambda: world.engine.prefill(seen))))


def expire(world: World, random: Random) -> None:
    """Reserve a row at a later moment, so that frames that are not held expire."""
    world.kv.frames.abandon(world.kv.reserve(time.monotonic() + random.choice((1.0, 12.0))))


def hold(world: World, random: Random) -> None:
    """Take a lease on a frame, and hold it for long."""
    if len(world.leases) < HELD:
        world.leases.append(world.kv.acquire(_some(world, random)))


def let_go(world: World, random: Random) -> None:
    """Release a held lease, half of the time twice."""
    if not world.leases:
        raise DeclinedError('nothing is held')
    lease = world.leases.pop(random.randrange(len(world.leases)))
    lease.release()
    if random.random() < 0.5:
        lease.release()


def stale_handle(world: World, random: Random) -> None:
    """Acquire a handle of another process, layout, row or generation."""
    handle = _some(world, random)
    odd = random.choice(
        [
            dict(process_id='0' * 32),
            dict(layout='0' * 16),
            dict(row=99),
            dict(row=-1),
            dict(generation=handle.generation - 1),
        ]
    )
    must_refuse(lambda: world.kv.acquire(replace(handle, **odd)), StaleHandleError)


def _observe(world: World, random: Random) -> Observation:
    return world.observe(random, random.choice(ROBOTS), random.choice((*[10.0] * 8, 0.0, -10.0)))


def _some(world: World, random: Random) -> KvHandle:
    if not world.handles:
        raise DeclinedError('there was no frame yet')
    return random.choice(list(world.handles)[-3:])


def _deadline(random: Random) -> float:
    """Return a deadline (s, steady clock), which may be near or past."""
    return time.monotonic() + random.choice((*[10.0] * 8, 0.004, -1.0))


def _act(world: World, random: Random, handle: KvHandle) -> None:
    with world.kv.acquire(handle) as lease:
        chunk = world.wait(world.device.denoise(lease, _deadline(random)))
    if chunk is None:
        raise DeclinedError('too late')
    _check(chunk)


def _check(*chunks: ActionChunk) -> None:
    for chunk in chunks:
        whole = chunk.values.shape == (TINY.chunk_size, TINY.action_dim)
        assert whole and np.isfinite(chunk.values).all(), 'a chunk is whole or absent'
