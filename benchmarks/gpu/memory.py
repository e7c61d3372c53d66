"""The memory that a model needs on a card, from dimensions: `python -m benchmarks.gpu.memory`.

Weights and arenas are exact; work is an estimate, which `gpu.real` measures on a card.

Physics: weights are there once, for all readers; a prefix row and the decode KV of a stream grow
with their tokens. All graphs share one pool of scratch, so the largest computation counts: a
prefill, or the logits of all streams. What a graph stores into rows is not kept while it is
captured, since no row is bound then: no arena is ever there twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from benchmarks.common.physics import BYTES
from benchmarks.common.scene import with_views
from benchmarks.gpu.summary import table
from embodied_kv.config import ModelConfig, preset
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.compressed_arena import BLOCK
from embodied_kv.model.pi05 import Pi05

GIB = 2**30
CONTEXT = 0.6 * GIB  # of the driver, CUDA's libraries and their workspaces; an estimate
LEFT = 0.95  # of a card, that one process may take
CARDS: Mapping[str, float] = {  # GiB
    '8 GB': 8 * LEFT,
    '16 GB (Jetson)': 16 * LEFT - 4,  # the system, ROS 2 and the cameras use it too
    '24 GB': 24 * LEFT,
    '141 GB': 140 * LEFT,
}
SIZES = ((3, 1), (8, 4), (16, 16), (64, 64), (256, 256))  # rows, streams
FEWEST, MOST = 3, 4096  # rows of an engine
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Taken:
    """Memory in bytes. work: buffers and scratch of all graphs."""

    weights: int
    prefixes: int
    decode_kv: int
    compressed: int
    work: int

    @property
    def arenas(self) -> int:
        """Return all KV that an engine keeps, as in its statistics."""
        return self.prefixes + self.decode_kv + self.compressed

    @property
    def total(self) -> float:
        """Return the most that is taken while the engine is made, with the driver."""
        return self.weights + self.arenas + self.work + CONTEXT


def taken(c: ModelConfig, e: EngineConfig) -> Taken:
    """Return the memory of a model in its own dtype, and of one engine over it."""
    per_token = c.kv_bytes_per_token
    prefixes = e.rows * c.prefix_tokens * per_token
    decode_kv = e.streams * e.decode_tokens * per_token
    kept = e.compressed_rows * c.backbone.layers * c.prefix_tokens  # tokens of single layers
    blocks = -(-kept // BLOCK) * BLOCK
    return Taken(
        weights=weights(c),
        prefixes=prefixes,
        decode_kv=decode_kv,
        compressed=blocks * per_token // c.backbone.layers,
        work=work(c, e),
    )


@cache
def weights(c: ModelConfig) -> int:
    """Return the bytes of every parameter and buffer, by a model on the meta device."""
    model = Pi05.empty(c, 'meta')
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def work(c: ModelConfig, e: EngineConfig) -> int:
    """Estimate the bytes of the buffers of graphs, and of the scratch of the largest one."""
    b, v, size = c.backbone, c.vision, BYTES[c.dtype]
    tokens, images = e.max_batch_robots * c.prefix_tokens, e.max_batch_robots * len(c.views)
    logits = e.streams * b.vocab_size * FLOAT
    scores = e.max_batch_robots * b.layers * b.heads * c.prefix_tokens * FLOAT
    counts = range(e.min_euler_steps, e.euler_steps + 1)  # a table for every step of each
    tables = sum(counts) * (2 * b.layers + 1) * c.expert.width * (2 * FLOAT + size)
    seen = images * (3 * v.image_size**2 + v.tokens * b.width) * size
    layer = tokens * (
        (3 * b.width + 2 * b.heads * b.head_dim + 3 * b.mlp) * size + b.width * FLOAT
    )
    tower = images * v.patches * ((6 * v.width + 2 * v.mlp) * size + v.width * FLOAT)
    return logits + scores + tables + seen + max(layer, tower, logits)


def rows(c: ModelConfig) -> list[dict]:
    """Return, by rows and streams, the GiB of each part, and the cards that they fit on."""
    found = []
    for count, streams in SIZES:
        t = taken(c, EngineConfig(rows=count, streams=streams))
        parts = dict(weights=t.weights, prefixes=t.prefixes, decode_kv=t.decode_kv)
        parts |= dict(compressed=t.compressed, work=t.work, in_all=t.total)
        row = dict(rows=count, streams=streams) | {n: f'{x / GIB:.2f}' for n, x in parts.items()}
        fits = {card: 'yes' if t.total <= room * GIB else 'no' for card, room in CARDS.items()}
        found.append(row | fits)
    return found


def most(c: ModelConfig, room: float) -> int:
    """Return the rows, each with a stream, that fit into `room` GiB; 0 if FEWEST do not."""
    low, high = FEWEST - 1, MOST
    while low < high:
        count = (low + high + 1) // 2
        t = taken(c, EngineConfig(rows=count, streams=count))
        low, high = (count, high) if t.total <= room * GIB else (low, count - 1)
    return low if low >= FEWEST else 0


def markdown(c: ModelConfig) -> list[str]:
    """Return the lines of both tables."""
    views = [dict(views=n) | _most(c, n) for n in range(1, len(c.views) + 1)]
    return [*table(rows(c)), '', *table(views)]


def _most(c: ModelConfig, views: int) -> dict[str, int]:
    some = with_views(c, views)
    return {card: most(some, room) for card, room in CARDS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--preset', default='pi05')
    with torch.inference_mode():
        print('\n'.join(markdown(preset(parser.parse_args().preset))))


if __name__ == '__main__':
    main()
