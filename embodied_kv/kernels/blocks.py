"""How large the tiles of an attention kernel are, by what a card's shared memory holds.

A tile of queries stays on chip while tiles of keys and values pass by, several of them under way
at once. Knows bytes and cards. Does not know rows, nor what a token means.

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
REDUCTIONS = KIB  # at most, for what warps tell each other
WIDE = 16 * KIB  # of queries: from here on four warps have too few registers


@dataclass(frozen=True)
class Card:
    """capability: as CUDA tells it. shared: bytes a block may have. processors: how many."""

    capability: tuple[int, int]
    shared: int
    processors: int


@dataclass(frozen=True)
class Tile:
    """queries: rows that stay. keys: rows that pass by at once. stages: of them under way."""

    queries: int
    keys: int
    stages: int
    warps: int


@lru_cache
def card_of(device: torch.device) -> Card:
    """Of a device; Triton's interpreter, on a CPU, passes for the smallest that is known."""
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
    """Shared memory that a tile takes at most: queries, keys and values, weights.

    Where tensor cores read keys from shared memory (Hopper), a tile under way and the one that is
    read are both there; elsewhere what is read has gone into registers.
    """
    direct = capability[0] not in (8, 12) and queries >= 64
    buffers = stages if direct else max(1, stages - 1)
    rows = queries + 2 * buffers * keys
    return itemsize * (width(head_dim) * rows + queries * keys) + REDUCTIONS


def attention_tile(queries: int, head_dim: int, itemsize: int, card: Card) -> Tile:
    """The largest tile for so many queries that the card holds.

    queries: of all heads that share a KV head. Raises ValueError where not even the smallest fits.
    """
    # Tensor cores have no exact float32: its products are made in registers, which are few.
    most, widest = (64, 64) if itemsize <= 2 else (32, 16)
    largest = max(16, min(most, power_of_2(queries)))
    for kept, keys, stages in _sizes(largest, widest):
        needed = shared_bytes(head_dim, itemsize, kept, keys, stages, card.capability)
        if needed <= card.shared:
            warps = 8 if kept * width(head_dim) * itemsize >= WIDE else 4
            return Tile(kept, keys, stages, warps)
    raise ValueError(
        f'no tile of heads of {head_dim} x {itemsize} bytes fits into {card.shared} bytes of '
        'shared memory: use a narrower dtype'
    )


def splits_of(programs: int, keys: int, tile: Tile, card: Card) -> int:
    """Into how many splits keys are cut, so that so many programs, times splits, fill the card.

    keys: at most. A split costs an output in float32, written and read again: it is worth as many
    bytes of keys and values, 16 bits each. So it depends on the batch, and a slot alone and in a
    batch may differ in the order of sums, as in matrix products: the splits that one slot needs
    would cost a batch that fills the card up to twice its bytes.
    """
    least = max(tile.keys, 2 * tile.queries)
    return max(1, min(card.processors // programs, keys // least))


def _sizes(largest: int, widest: int) -> Iterator[tuple[int, int, int]]:
    """Queries, keys and stages, the best first.

    Few queries wait for memory, many for themselves; without a second stage every load is waited
    for.
    """
    keys = [size for size in (64, 32, 16) if size <= widest]
    for kept in (size for size in (64, 32, 16) if size <= largest):
        deepest = 2 if kept == 64 else 3
        yield from ((kept, size, stages) for size in keys for stages in range(deepest, 1, -1))
        yield from ((kept, size, 1) for size in keys)


def width(head_dim: int) -> int:
    """Of a head in a tile: tensor cores want powers of two, 16 at least."""
    return max(16, power_of_2(head_dim))


def power_of_2(number: int) -> int:
    """The least that is not below."""
    return 1 << (number - 1).bit_length()
