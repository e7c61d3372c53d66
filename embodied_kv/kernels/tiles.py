"""Tile sizes of an attention kernel, by the shared memory of the GPU.

A tile of queries stays on chip while tiles of keys and values are loaded, several at once.

Source of the limits: CUDA C++ Programming Guide, table of technical specifications by compute
capability, shared memory of a thread block (opt-in).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

KIB = 1024
# By compute capability: A100; Jetson Orin; RTX 4090 and L40S; H100 and H200; RTX 5090.
LIMITS = {
    (8, 0): 163 * KIB,
    (8, 7): 163 * KIB,
    (8, 9): 99 * KIB,
    (9, 0): 227 * KIB,
    (12, 0): 99 * KIB,
}
REDUCTIONS = KIB  # upper bound of the bytes for reductions over warps
WIDE = 16 * KIB  # bytes of queries from which four warps have too few registers


@dataclass(frozen=True)
class Card:
    """A GPU. capability: compute capability. shared: bytes of a block. processors: SMs."""

    capability: tuple[int, int]
    shared: int
    processors: int


@dataclass(frozen=True)
class Tile:
    """queries: rows of the resident tile. keys: rows of a streamed tile. stages: in flight."""

    queries: int
    keys: int
    stages: int
    warps: int


@lru_cache
def card_of(device: torch.device) -> Card:
    """Return the GPU of a device; for Triton's interpreter, on a CPU, the smallest known one."""
    if device.type == 'cpu':
        return Card((8, 9), LIMITS[8, 9], 4)
    seen = torch.cuda.get_device_properties(device)
    capability = seen.major, seen.minor
    shared = LIMITS.get(capability)
    if not shared:  # torch's stub lacks it
        shared = seen.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return Card(capability, shared, seen.multi_processor_count)


def shared_bytes(
    head_dim: int, itemsize: int, queries: int, keys: int, stages: int, capability: tuple[int, int]
) -> int:
    """Return an upper bound of a tile's shared memory: queries, keys and values, weights.

    If tensor cores read keys from shared memory (Hopper), it holds the tiles in flight and the one
    that is read; elsewhere the latter is in registers.
    """
    direct = capability[0] not in (8, 12) and queries >= 64
    buffers = stages if direct else max(1, stages - 1)
    rows = queries + 2 * buffers * keys
    return itemsize * (width(head_dim) * rows + queries * keys) + REDUCTIONS


def attention_tile(queries: int, head_dim: int, itemsize: int, card: Card) -> Tile:
    """Return the largest tile for so many queries that fits on the GPU.

    queries: of all heads that share a KV head. Raises ValueError if even the smallest is too
    large.
    """
    # Tensor cores have no exact float32, so its products are computed in registers, which are few.
    most, widest = (64, 64) if itemsize <= 2 else (32, 16)
    largest = max(16, min(most, power_of_2(queries)))
    for kept, keys, stages in _sizes(largest, widest):
        needed = shared_bytes(head_dim, itemsize, kept, keys, stages, card.capability)
        if needed <= card.shared:
            warps = 8 if kept * width(head_dim) * itemsize >= WIDE else 4
            return Tile(kept, keys, stages, warps)
    raise ValueError(
        f'a tile of heads of {head_dim} x {itemsize} bytes must fit in {card.shared} bytes of '
        'shared memory; use a narrower dtype'
    )


def splits_of(programs: int, keys: int, tile: Tile, card: Card) -> int:
    """Return the number of splits of the keys with which `programs` times splits fill the GPU.

    keys: largest number of keys. A split costs an output in float32, written and read again, as
    many bytes as keys and values of 16 bits. The number depends on the batch, because the splits
    that one slot needs would cost a batch that fills the GPU up to twice its bytes. So the order
    of sums may differ between a slot alone and in a batch, as in matrix products.
    """
    least = max(tile.keys, 2 * tile.queries)
    return max(1, min(card.processors // programs, keys // least))


def _sizes(largest: int, widest: int) -> Iterator[tuple[int, int, int]]:
    """Yield queries, keys and stages, the best first.

    With few queries, memory is the limit; without a second stage, a program waits for every load.
    """
    keys = [size for size in (64, 32, 16) if size <= widest]
    for kept in (size for size in (64, 32, 16) if size <= largest):
        deepest = 2 if kept == 64 else 3
        yield from ((kept, size, stages) for size in keys for stages in range(deepest, 1, -1))
        yield from ((kept, size, 1) for size in keys)


def width(head_dim: int) -> int:
    """Return the padded size of a head: tensor cores need powers of two, at least 16."""
    return max(16, power_of_2(head_dim))


def power_of_2(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()
