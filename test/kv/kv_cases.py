"""A manager over small arenas without a model, and frames that were not computed."""

import math
import time

import torch

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.manager import KvManager

SIZE = dict(layers=1, kv_heads=1, max_tokens=16, head_dim=4, dtype=torch.float32)


def make_manager(
    rows,
    streams,
    compressed=(8, 256),
    reserved=2,
    clock=time.monotonic,
    kv_budget=None,
    floor=0,
    **size,
):
    """Return a manager.

    compressed: rows and tokens of the compressed arena. kv_budget, floor: as for `KvManager`.
    """
    prefixes = Arena(rows=rows, **SIZE | size)
    decode_kv = Arena(rows=streams, **SIZE | size)
    arenas = prefixes, decode_kv, CompressedArena(prefixes, *compressed)
    return KvManager(*arenas, reserved, clock=clock, kv_budget=kv_budget, floor=floor)


def frame(kv, sequence=0, robot='', length=4):
    """Commit the newest frame of a robot in a row of its own, and return its handle."""
    return write(kv, kv.reserve(0.0), sequence, robot, length)


def write(kv, row, sequence=0, robot='', length=4, deadline=math.inf, prefill_ms=0.0):
    """Commit a frame in a reserved row, and return its handle."""
    facts = dict(robot=robot, sequence=sequence, stamp=0, prefill_ms=prefill_ms)
    return kv.frames.commit(row, length, deadline=deadline, **facts)
