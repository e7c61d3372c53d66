"""Loads of stored KV during the computation: their time, and that they change no bit.

A planner with pi05's backbone, random weights, and a prompt of segments whose KV lies in host
memory: computed in full; every segment's KV loaded; and KEEP, which loads what it does not compute
again. By policy (loads between layers, during the layer before, during any layer) and by memory of
the KV: pinned, as in the store, or pageable. Within a method, all must make the same hidden state.

Physics: no way ends before its computation, nor before its bytes have come over the bus, whose
rate is measured here; in parallel, they take the longer of the two.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.common import clock, report
from benchmarks.common.command import add_device, command
from benchmarks.memory.load_policies import POLICIES, PolicyQueue
from benchmarks.memory.spans import TimedLoader
from embodied_kv.config import PI05, TINY
from embodied_kv.kv.arena import Arena
from embodied_kv.memory.keep import Keep, keep_ratio
from embodied_kv.memory.prefill import Prefill
from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.reuse import FullRecompute, Reuse
from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.layers import wavelengths
from embodied_kv.model.planner import Planner, PlannerConfig
from embodied_kv.model.random import init_random

SHARE = 0.16  # of memory that KEEP computes again, mean over the layers (of two: more)
QUESTION = 24  # tokens


@dataclass(frozen=True)
class Size:
    """The amount of work: `segments` segments of `tokens` tokens, and the counted repeats."""

    config: PlannerConfig
    segments: int
    tokens: int
    repeats: int

    @property
    def length(self) -> int:
        """Return the tokens of the prompt."""
        return self.segments * self.tokens + QUESTION


def size(dry: bool) -> Size:
    """Return pi05's backbone with a small vocabulary, and 40 segments as in the paper.

    A tiny one if `dry`.
    """
    c, segments, tokens = (TINY, 3, 8) if dry else (PI05, 40, 64)
    backbone = replace(c.backbone, vocab_size=512)
    most = segments * tokens + QUESTION
    config = PlannerConfig('loading', backbone, max_tokens=most, dtype=c.dtype)
    return Size(config, segments, tokens, 1 if dry else 7)


def prompt(s: Size) -> Prompt:
    """Return segments of random tokens, each a unit of its own, and a question."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(s.config.backbone.vocab_size, (s.length,), generator=generator).tolist()
    cuts = range(0, s.segments * s.tokens, s.tokens)
    pieces = (Piece(f's{at}', ids[at : at + s.tokens], f'u{at}') for at in cuts)
    return Prompt((), tuple(pieces), ids[s.segments * s.tokens :])


class Kept:
    """KV of every unit in host memory, noise: [layers, 2, kv_heads, tokens, head_dim] each."""

    def __init__(self, s: Size, asked: Prompt, pinned: bool) -> None:
        b, generator = s.config.backbone, torch.Generator().manual_seed(1)
        dtype = getattr(torch, s.config.dtype)
        shape = b.layers, 2, b.kv_heads, s.tokens, b.head_dim
        made = (torch.randn(shape, generator=generator).to(dtype) for _ in asked.pieces)
        parts = (part.pin_memory() if pinned else part for part in made)
        self._kv = dict(zip((piece.unit for piece in asked.pieces), parts, strict=True))
        self.bytes = 0  # that were requested

    def __call__(self, unit: str, layer: int) -> tuple[Tensor, Tensor]:
        k, v = self._kv[unit][layer]
        self.bytes += k.nbytes + v.nbytes
        return k, v


def bus(device: str) -> float:
    """Return the GB/s from pinned host memory to the device."""
    source = torch.zeros(2**26, dtype=torch.uint8, pin_memory=device == 'cuda')
    target = torch.zeros_like(source, device=device)

    def copy() -> None:
        target.copy_(source, non_blocking=True)

    return source.nbytes / min(clock.in_turn(dict(copy=copy), 5, device)['copy']) / 1e9


def rows(s: Size, device: str) -> Iterator[dict]:
    """Yield a row for each method, from each kind of memory, by each policy."""
    b, asked = s.config.backbone, prompt(s)
    model = Planner.empty(s.config, device)
    init_random(model)
    arena = Arena(
        layers=b.layers,
        rows=1,
        kv_heads=b.kv_heads,
        max_tokens=s.length,
        head_dim=b.head_dim,
        dtype=model.dtype,
        device=model.device,
    )
    move = Rotation(wavelengths(b.head_dim, b.rope_theta)[None].to(model.device))
    keep = Keep(keep_ratio(max(SHARE, 1.5 / b.layers), b.layers))
    rate = bus(device)
    reuses: tuple[Reuse, ...] = (FullRecompute(), Reuse(), keep)
    for reuse in reuses:
        first = None
        for source in ('pinned', 'pageable') if reuse.loads else ('nothing',):
            kept = Kept(s, asked, source == 'pinned' and device == 'cuda')
            for policy in POLICIES if reuse.loads else POLICIES[:1]:
                prefill = Prefill(model, arena, 0, kept, move, block=1024)
                prefill.loader, prefill.queue = TimedLoader, partial(PolicyQueue, policy=policy)
                ms, hidden, moved = timed(lambda p=prefill, r=reuse: p.run(asked, r), kept, s)
                first = hidden if first is None else first
                yield dict(
                    method=reuse.name,
                    source=source,
                    policy=policy,
                    tokens=s.length,
                    ms=ms,
                    loaded_mb=moved / 1e6,
                    bus_floor_ms=moved / rate / 1e6,
                    ok=torch.equal(hidden, first),
                )


def timed(run: Callable[[], tuple[Tensor, object]], kept: Kept, s: Size) -> tuple:
    """Return the median ms to the hidden state, that state, and the bytes that one run loaded."""
    hidden, _ = run()
    device, taken, kept.bytes = hidden.device.type, [], 0
    for _ in range(s.repeats):
        taken.append(report.once(run, device))
    return 1e3 * statistics.median(taken), hidden, kept.bytes / s.repeats


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this stage."""
    add_device(parser)
    parser.add_argument('--dry', action='store_true', help='a tiny planner, three segments')


@torch.inference_mode()
def run(args: argparse.Namespace) -> dict:
    """Measure, print the table, and return all figures."""
    found = list(rows(size(args.dry), args.device))
    if not args.json:
        report.show(f'loads beside computation, {args.device}', found)
    return dict(ok=all(row['ok'] for row in found), rows=found)


main = command('gpu.loading', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
