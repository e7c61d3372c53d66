"""What compression costs and what it saves: time and bytes at a tenth of the cache.

Source: VL-Cache, 5.2, A.5 and A.6.

Physics: a decode step reads all weights once and the KV of every stream, so by bytes alone a tenth
of the KV makes it (W + B n k) / (W + B n k / 10) times faster: W bytes of weights, B streams, n
tokens of k bytes. With one KV head k is small, and weights are nearly all that is read until B n
reaches W / k: 40,000 tokens for pi05_small, 270,000 for pi05, 110,000 for Mistral 7B. A prefill is
operations; scoring repeats the scores of at most 50 queries, and a gather copies the kept tenth.
What is not bytes (Python, small matrices, attention that computes on a CPU) stays in both ways.

Times on a CPU are one thread's own, as cores may be shared; `load` says how busy they were.
Compression is the engine's own, by `vl_cache` at alpha 0.1. Frames that are only decoded hold
noise and were not prefilled.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from embodied_kv.bench import compress_speed_decode as decode
from embodied_kv.bench import compress_speed_plot as plots
from embodied_kv.bench import compress_speed_request as request
from embodied_kv.bench import compress_speed_scene as scene
from embodied_kv.bench import compress_speed_serve as serve
from embodied_kv.bench import report
from embodied_kv.bench.scene import FullPolicy

K = 1024
TABLES = dict(
    cost='what is added to prefill and begin (the appended question), part by part',
    answer='from camera to the last of 100 tokens',
    decode='a step of streams with frames of their own',
    shared='a step of streams that ask of one frame, and MB of the cache in use',
    serve='a static batch, as in figure 6; words: without its prefills',
    capacity='streams with frames of their own in a cache of one size',
)


@dataclass(frozen=True)
class Plan:
    """What is measured.

    answers: of a model, (views, counted repeats). steps: of a model, (contexts, batches, repeats).
    sharing: streams of one frame, of `shared` tokens. batches: of what is served. cache: size of
    the one that is filled, in prefixes of two views.
    """

    answers: Mapping[str, Sequence[tuple[int, int]]]
    steps: Mapping[str, tuple[Sequence[int], Sequence[int], int]]
    sharing: Sequence[int]
    shared: int
    batches: Sequence[int]
    cache: int


SMALL, SMALL_8, PI05, MISTRAL = scene.BACKBONES
CONTEXTS = (K, 2 * K, 4 * K, 8 * K, 16 * K, 32 * K)
WHOLE = Plan(
    answers={SMALL: ((1, 3), (2, 2), (4, 1), (8, 1)), SMALL_8: ((2, 1),)},
    steps={
        SMALL: (CONTEXTS, (1, 2, 4, 8, 16), 5),
        SMALL_8: (CONTEXTS[:-1], (1, 4, 16), 3),
        PI05: ((2 * K, 8 * K, 32 * K), (1, 4, 16), 3),
        MISTRAL: ((2 * K, 8 * K, 32 * K), (1, 4, 16), 3),
    },
    sharing=(1, 4, 16),
    shared=8 * K,
    batches=(1, 2, 4, 8, 16, 32, 64),
    cache=32,
)
QUICK = Plan(
    answers={SMALL: ((1, 1),)},
    steps={SMALL: ((K, 8 * K), (1, 16), 3), MISTRAL: ((8 * K,), (1, 4), 1)},
    sharing=(16,),
    shared=8 * K,
    batches=(1, 8),
    cache=10,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--quick', action='store_true', help='few points, in a minute')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--json', action='store_true', help='no table, only the line')


@torch.inference_mode()
def run(args: argparse.Namespace) -> dict:
    """Measures, prints the tables, and returns all figures."""
    torch.set_num_threads(1)
    began, plan = time.monotonic(), QUICK if args.quick else WHOLE
    result = dict(
        bench='compress_speed',
        alpha=scene.ALPHA,
        machine=report.machine(args.device),
        load=[os.getloadavg()[0]],
        gbytes=scene.bandwidth(args.device),
    )
    tables: dict[str, list[dict]] = {name: [] for name in TABLES}
    gbytes = max(result['gbytes'].values())
    for model in plan.steps:
        for name, rows in measure(model, plan, gbytes, args.device):
            tables[name] += rows
            took = time.monotonic() - began
            print(f'{took:.0f} s: {name}, {model}', file=sys.stderr, flush=True)
    result['load'].append(os.getloadavg()[0])
    if not args.json:
        for name, rows in tables.items():
            report.show(f'{name}, alpha {scene.ALPHA}, {args.device}', rows, TABLES[name])
        plots.plot(tables)
    return result | tables


def measure(
    model: str, plan: Plan, gbytes: float, device: str
) -> Iterator[tuple[str, list[dict]]]:
    """Rows of tables, by name. gbytes: GB/s, measured."""
    policy = FullPolicy.random(scene.model(model), device=device)
    served: list[dict] = []
    for views, repeats in plan.answers.get(model, ()):
        tokens = views * scene.IMAGE + scene.TEXT
        costs, answers = request.measure(policy, tokens, repeats, device)
        yield 'cost', costs
        yield 'answer', answers
        if views <= 2:
            served = answers
    steps = plan.steps[model]
    yield 'decode', list(decode.grid(policy, *steps, gbytes, device))
    if model == SMALL:
        yield 'shared', decode.shared(policy, plan.shared, plan.sharing, steps[-1], device)
        tokens = 2 * scene.IMAGE + scene.TEXT
        size = plan.cache * tokens * policy.config.kv_bytes_per_token
        yield 'capacity', [serve.capacity(policy, tokens, size)]
    if served:
        context = served[0]['context']
        batches = decode.grid(policy, (context,), plan.batches, steps[-1], gbytes, device)
        yield 'serve', serve.throughput(served, list(batches))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_arguments(parser)
    report.save('compress_speed', run(parser.parse_args()))


if __name__ == '__main__':
    main()
