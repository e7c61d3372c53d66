"""Helpers of the store tests: segments, and KV that identifies the texts it was computed from."""

import torch

from embodied_kv.memory.segment import Segment, Unit, UnitKv

LAYERS, HEADS, DIM = 3, 2, 4


def put(store, **texts):
    return store.upsert(*(Segment(id, 'object', text) for id, text in texts.items()))


def unit(store, *ids):
    return Unit(tuple(store.get(id) for id in ids))


def kv(unit, dtype=torch.float32):
    """Return KV of one token per character, made from the texts."""
    lengths = tuple(len(segment.text) for segment in unit.segments)
    numbers = torch.tensor([ord(c) for segment in unit.segments for c in segment.text])
    k = numbers[None, None, :, None] + torch.arange(LAYERS)[:, None, None, None]
    k = k.expand(LAYERS, HEADS, -1, DIM).to(dtype)
    return UnitKv(unit, k, -k, lengths)


def is_whole(store, unit):
    """Return whether every layer equals that of `kv`."""
    made = kv(unit)
    for layer in range(LAYERS):
        k, v = store.load_memory(unit.key, layer)
        if not (torch.equal(k, made.k[layer]) and torch.equal(v, made.v[layer])):
            return False
    return store.lengths(unit.key) == made.lengths
