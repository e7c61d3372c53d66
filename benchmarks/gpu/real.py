"""A frame of a model at its real size, by views: captured graphs, compiled or not.

Random weights in the dtype that the device serves; prompts are the longest. A frame is one prefill
and one chunk of ten Euler steps, from observation to actions on the host. Phases are measured,
too, with what each launches on the device. With --compile both ways are taken in turn, and their
actions are compared.

Physics: a phase takes no less than its operations over the card's rate, nor than its bytes over
its bandwidth, both measured here; a frame no less than its phases together. What is above that is
launches, and kernels that do not fill the card.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import torch

from benchmarks import parts
from benchmarks.common import clock, physics, report, scene
from benchmarks.common.command import command
from benchmarks.deadline.serve import STREAMS, engine_config
from benchmarks.gpu.dry import narrow, uncompiled
from benchmarks.gpu.facts import card
from benchmarks.gpu.launches import counted, kernels
from embodied_kv.config import ModelConfig, preset
from embodied_kv.engine import shapes
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.shapes import Kind
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.dtype import served
from embodied_kv.runtime.graph_cache import Shape
from embodied_kv.types import Observation

FRAMES, REPEATS, WARM_UP = 60, 15, 5
DRY_FRAMES, DRY_REPEATS = 3, 1
BATCHES = 1, STREAMS  # of decode steps
WAYS = {'captured': 'off', 'compiled': 'now'}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this stage."""
    add_model(parser)
    parser.add_argument('--compile', action='store_true', help='beside the captured way')
    parser.add_argument(
        '--frame-only', action='store_true', help='compile and time what a frame needs alone'
    )
    parser.add_argument('--dry', action='store_true', help='few repeats; nothing is compiled')


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model and its device."""
    parser.add_argument('--preset', default='pi05', help='dimensions of the model')
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--views', type=int, nargs='+', default=[2], help='how many, in turn')


def random_policy(args: argparse.Namespace) -> scene.FullPolicy:
    """Return a random policy with all views, in the dtype in which the device serves it."""
    return scene.FullPolicy.random(served(preset(args.preset), args.device), device=args.device)


def frame_shapes(c: ModelConfig, _: EngineConfig) -> list[Shape]:
    """Return the shapes that a frame with the longest prefix needs compiled."""
    return [
        Shape(Kind.ENCODE_IMAGES, len(c.views)),
        Shape(Kind.PREFILL, 1, c.prefix_tokens),
        Shape(Kind.DENOISE, 1),
    ]


def engine(
    policy: scene.FullPolicy, views: int, way: str, device: str, frame_only: bool = False
) -> Engine:
    """Return an engine of the sizes of `benchmarks.deadline`: what it compiles serves there.

    It uses all Euler steps, whatever the time. The progress of compiling goes to stderr. If
    nothing can be compiled, this ends the program: the captured way would be measured twice.
    frame_only: compile only what `frame_shapes` has.
    """
    gc.collect()
    if device == 'cuda':
        torch.cuda.empty_cache()  # of the previous engine
    own = replace(policy, config=scene.with_views(policy.config, views))
    config = engine_config(time_budget=False, compile=WAYS[way], device=device)
    said: list[str] = []
    few = mock.patch.object(shapes, 'compiled_shapes', frame_shapes)
    with few if frame_only and way == 'compiled' else nullcontext():
        made = Engine(own, config, say=partial(told, said))
    if config.compile != 'off' and not made.graphs.compiled_names:
        sys.exit(said[-1])
    return made


def told(said: list[str], line: str) -> None:
    """Record a line, and print it to stderr."""
    said.append(line)
    print(line, file=sys.stderr, flush=True)


def frame(made: Engine, seen: Observation) -> np.ndarray:
    """Return the actions [chunk, dims] of an observation."""
    (handle,) = made.prefill([seen])
    with made.kv.acquire(handle) as lease:
        (chunk,) = made.denoise([lease], [math.inf])
    return chunk.values


def frames_in_turn(
    engines: Mapping[str, Engine], count: int, device: str
) -> dict[str, list[float]]:
    """Return the seconds of each frame of each way, after a warm-up."""
    taken: dict[str, list[float]] = {way: [] for way in engines}
    c = next(iter(engines.values())).policy.config
    for number in range(WARM_UP + count):
        seen = scene.observation(c, number)
        for way in clock.order(engines, number):
            taken[way].append(report.once(partial(frame, engines[way], seen), device))
    return {way: own[WARM_UP:] for way, own in taken.items()}


def row(phase: str, took: Sequence[float], floor: float) -> dict:
    """Return a row of a phase. took, floor: s."""
    p50, p90, p99 = np.percentile(took, (50, 90, 99)) * 1e3
    ms = dict(ms=float(p50), p90_ms=float(p90), p99_ms=float(p99))
    return dict(phase=phase) | ms | dict(floor_ms=floor * 1e3, of_floor=1e3 * floor / float(p50))


def frame_floor(c: ModelConfig, steps: int, ceilings: clock.Ceilings) -> float:
    """Return the minimum seconds of a frame: a prefill of all views, and the Euler steps."""
    prefill = physics.prefill(c, c.prefix_tokens, len(c.views))
    step = physics.denoise_step(c, c.prefix_tokens)
    return ceilings.floor(**prefill) + steps * ceilings.floor(**step)


def measure(
    engines: Mapping[str, Engine], ceilings: clock.Ceilings, args: argparse.Namespace
) -> Iterator[dict]:
    """Yield rows of one number of views: the frame, then its phases, each way."""
    some = next(iter(engines.values()))
    c, steps = some.policy.config, some.config.euler_steps
    about = dict(views=len(c.views), prefix=c.prefix_tokens)
    frames = frames_in_turn(engines, DRY_FRAMES if args.dry else FRAMES, args.device)
    for way, took in frames.items():
        yield about | dict(way=way) | row('frame', took, frame_floor(c, steps, ceilings))
    repeats = DRY_REPEATS if args.dry else REPEATS
    for way, made in engines.items():
        for phase, work, calls, need in parts.phases(
            made, repeats, () if args.frame_only else BATCHES
        ):
            found = kernels(work, args.device)
            took = [report.once(work, args.device) / calls for _ in range(repeats)]
            yield (
                about
                | dict(way=way)
                | row(phase, took, ceilings.floor(**need))
                | dict(launches=counted(found) / calls)
                | dict(kernels_ms=sum(kernel.us for kernel in found) / calls / 1e3)
            )


@torch.inference_mode()
def run(args: argparse.Namespace) -> dict:
    """Measure; with --json, print the results after each row, in case the run is cut short."""
    with torch.inference_mode(False):  # weights and traces as when serving
        policy, ways = random_policy(args), list(WAYS)[: 1 + args.compile]
    with narrow(args.dry):
        ceilings = clock.ceilings(args.device, 1 if args.dry else 5)
    found = dict(ok=True, preset=args.preset, dtype=policy.config.dtype, rows=[], engines=[])
    for views in args.views:
        engines = {}
        for way in ways:
            began = time.monotonic()
            with uncompiled(args.dry):
                engines[way] = engine(policy, views, way, args.device, args.frame_only)
            found['engines'].append(about(engines[way], views, way, time.monotonic() - began))
            if args.json:
                print(json.dumps(found), flush=True)
        for measured in measure(engines, ceilings, args):
            found['rows'].append(measured)
            if args.json:
                print(json.dumps(found), flush=True)
        if args.compile:
            found |= compared(engines)
        found |= dict(busy=card(), memory=memory(args.device))
        del engines
    if not args.json:
        report.show(f'{args.preset}, {args.device}, {policy.config.dtype}', found['rows'])
    return found


def about(made: Engine, views: int, way: str, took: float) -> dict:
    """Return the row of an engine, with the time that it took to make it ready."""
    graphs = made.graphs
    count = len(graphs.compiled_names)
    return dict(views=views, way=way, ready_s=took, graphs=len(graphs), compiled=count)


def compared(engines: Mapping[str, Engine]) -> dict:
    """Return how much the actions of both ways differ, relative to the largest; `ok`: below 5%."""
    one, other = (
        frame(made, scene.observation(made.policy.config, 7)) for made in engines.values()
    )
    differ = float(np.abs(one - other).max() / max(np.abs(one).max(), 1e-9))
    return dict(actions_differ=differ, ok=differ < 0.05)


def memory(device: str) -> dict:
    """Return MB of the card: that tensors have now, and that the process's pools reserve."""
    if device != 'cuda':
        return {}
    found = dict(allocated=torch.cuda.memory_allocated(), reserved=torch.cuda.memory_reserved())
    return {f'{name}_mb': taken / 1e6 for name, taken in found.items()}


main = command('gpu.real', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
