"""Replayed CUDA graphs compared with the computations that were captured, and with a CPU.

The same frames, chunks and streams of a tiny model through three engines: captured; on the same
device, never captured, which has to be equal to the bit; and on the CPU, which has to generate the
same tokens, and the same actions within a tolerance. Once over whole prefixes and once over
compressed ones, whose graphs score.

Physics: on one device a replay launches the kernels that were captured, over the same memory, so
that no bit may differ. Two devices add up in another order, some 1e-6 of an action; a greedy token
differs only where two logits are that close. TF32, with 10 bits, would be further apart.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from unittest import mock

import numpy as np
import torch

from benchmarks.common import report, scene
from benchmarks.common.command import add_device, command
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.runtime.graph_cache import GraphCache, run_eagerly

FRAMES, STEPS, ANSWER = 3, 6, 10  # steps of decoding after each frame, tokens of an answer
TOLERANCE = 1e-4  # of an action, in the robot's units, between devices
QUESTIONS = {'Subtask:': 0.0, 'What do you see?': 0.0, 'What next?': 0.8}  # and temperatures
RATIOS = {'whole prefixes': 1.0, 'compressed prefixes': 0.5}


@dataclass(frozen=True, eq=False)
class Trial:
    """The output of an engine: actions [frames, chunk, dims]; tokens of greedy and drawn streams.

    copies: streams that read compressed prefixes.
    """

    actions: np.ndarray
    greedy: list[list[int]]
    drawn: list[list[int]]
    copies: int


def engine(device: str, captured: bool, ratio: float) -> Engine:
    """Return an engine over random weights, the same on every device.

    captured: where the device can.
    """
    config = EngineConfig(
        rows=12,
        streams=8,
        decode_steps=2,  # so that tokens are fed back without the host
        time_budget=False,
        min_euler_steps=9,
        language_keep_ratio=ratio,
        compressed_rows=4,
        device=device,
    )
    policy = scene.FullPolicy.random(TINY, device=device)
    plain = mock.patch.object(GraphCache, '_record', lambda self, fn: partial(run_eagerly, fn))
    with nullcontext() if captured else plain:
        return Engine(policy, config)


def trial(made: Engine, frames: int) -> Trial:
    """Run frames, a chunk and three streams of each, and steps of all streams in between."""
    actions, streams = [], []
    for number in range(frames):
        (handle,) = made.prefill([scene.observation(TINY, number)])
        with made.kv.acquire(handle) as lease:
            (chunk,) = made.denoise([lease], [math.inf])
        actions.append(chunk.values)
        for text, temperature in QUESTIONS.items():
            own = dict(max_tokens=ANSWER, temperature=temperature, seed=number)
            streams.append(made.open(handle, text, **own))
        for _ in range(len(QUESTIONS) + STEPS):
            made.decode()
    while made.kv.streams.live():
        made.decode()
    words = [[s.tokens for s in streams if bool(s.query.temperature) == hot] for hot in (0, 1)]
    return Trial(np.stack(actions), *words, sum(s.lease.is_copy for s in streams))


def compared(ours: Trial, other: Trial, tolerance: float) -> dict:
    """Return a row. tolerance: of actions; 0 demands equal drawn tokens, too."""
    error = float(np.abs(ours.actions - other.actions).max())
    greedy, drawn = ours.greedy == other.greedy, ours.drawn == other.drawn
    words = greedy and (drawn or tolerance > 0)
    ok = error <= tolerance and words and bool(np.isfinite(ours.actions).all())
    return dict(actions_differ=error, tolerance=tolerance, greedy=greedy, drawn=drawn, ok=ok)


def rows(device: str, frames: int) -> Iterator[dict]:
    """Yield each comparison over each kind of prefix."""
    for prefixes, ratio in RATIOS.items():
        captured = engine(device, True, ratio)
        ours = trial(captured, frames)
        others = {
            'the same engine, again': (trial(captured, frames), 0.0),
            'the same device, not captured': (trial(engine(device, False, ratio), frames), 0.0),
            'the CPU': (trial(engine('cpu', True, ratio), frames), TOLERANCE),
        }
        for beside, (other, tolerance) in others.items():
            about = dict(prefixes=prefixes, copies=ours.copies, graphs=len(captured.graphs))
            yield about | dict(beside=beside) | compared(ours, other, tolerance)


@torch.inference_mode()
def run(args: argparse.Namespace) -> dict:
    """Compare, print the table, and return all figures."""
    torch.backends.cudnn.allow_tf32 = False
    found = list(rows(args.device, 1 if args.dry else FRAMES))
    if not args.json:
        report.show(f'replays beside what was captured, {args.device}', found)
    return dict(ok=all(row['ok'] for row in found), rows=found)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this stage."""
    add_device(parser)
    parser.add_argument('--dry', action='store_true', help='one frame')


main = command('gpu.replay', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
