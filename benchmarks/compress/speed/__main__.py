"""What compression costs and what it saves: time and bytes at a tenth of the cache.

Source: VL-Cache, 5.2, A.5 and A.6.

Physics: a decode step reads all weights once and the KV of every stream, so by bytes alone a tenth
of the KV makes it (W + B n k) / (W + B n k / 10) times faster: W bytes of weights, B streams, n
tokens of k bytes. With one KV head k is small, and weights are nearly all that is read until B n
reaches W / k: 40,000 tokens for pi05_small, 270,000 for pi05, 110,000 for Mistral 7B. A prefill is
operations; scoring repeats the scores of the queries of the prompt and of the question, and a
gather copies the kept tenth. Overhead that is not bytes (Python, small matrices) stays in both
ways. Attention on a CPU reads KV slower than products read weights, byte for byte; a step then
gains more than its bytes predict.

The ways take turns, forwards and backwards, after a warm-up round; each speedup is a ratio within
such rounds. Times on a CPU are one thread's CPU time, as cores may be shared; `load` states how
busy they were. Floors are operations and bytes over the best rates of the machine in the same run.
Compression is the engine's own, by `vl_cache` at a keep ratio of 0.1. Frames that are only decoded
hold noise and were not prefilled.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import torch

from benchmarks.common import clock, report
from benchmarks.common.command import add_device, command
from benchmarks.common.scene import FullPolicy
from benchmarks.compress.speed import decode, deferred, models, plot, request, scene, serve
from benchmarks.compress.speed.plan import QUICK, WHOLE, Plan

TABLES = dict(
    cost='what is added to prefill and begin (the appended question), part by part',
    answer='from camera to the last of 100 tokens',
    decode='a step of streams with frames of their own',
    shared='a step of streams that ask of one frame, and MB of the cache in use',
    serve='a static batch, as in figure 6, added up from the above; language: no prefills',
    deferred='the first tokens of an answer, by how many come before the choice',
    capacity='streams with frames of their own in a cache of one size',
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument('--quick', action='store_true', help='few points, in a minute')
    add_device(parser)


@torch.inference_mode()
def run(args: argparse.Namespace) -> dict:
    """Measure, print the tables, and return all figures."""
    torch.set_num_threads(1)
    began, plan = time.monotonic(), QUICK if args.quick else WHOLE
    ceilings = clock.ceilings(args.device)
    result = dict(
        settings=dict(keep_ratio=scene.KEEP_RATIO, device=args.device, **asdict(plan)),
        load=[os.getloadavg()[0]],
        ceilings=asdict(ceilings),
    )
    tables: dict[str, list[dict]] = {name: [] for name in TABLES}
    for model in plan.steps:
        for name, rows in measure(model, plan, ceilings, args.device):
            tables[name] += rows
            took = time.monotonic() - began
            print(f'{took:.0f} s: {name}, {model}', file=sys.stderr, flush=True)
    result['load'].append(os.getloadavg()[0])
    if not args.json:
        for name, rows in tables.items():
            report.show(
                f'{name}, keep ratio {scene.KEEP_RATIO}, {args.device}', rows, TABLES[name]
            )
        plot.speed(tables)
    return result | tables


def measure(
    model: str, plan: Plan, ceilings: clock.Ceilings, device: str
) -> Iterator[tuple[str, list[dict]]]:
    """Yield rows of tables, by name."""
    policy = FullPolicy.random(models.model(model), device=device)
    served: list[dict] = []
    for views, repeats in plan.answers.get(model, {}).items():
        costs, answers = request.measure(policy, views, repeats, ceilings, device)
        yield 'cost', costs
        yield 'answer', answers
        if views == plan.served:
            served = answers
    steps = plan.steps[model]
    yield 'decode', list(decode.grid(policy, steps, ceilings, device))
    if served:
        batches = replace(steps, contexts=(served[0]['context'],), batches=plan.batches)
        rows = list(decode.grid(policy, batches, ceilings, device))
        yield 'serve', serve.throughput(served, rows)
    if model == models.SMALL:
        asked = plan.shared, plan.sharing, steps.repeats
        yield 'shared', list(decode.shared(policy, *asked, ceilings, device))
        tokens = 2 * models.IMAGE + models.TEXT
        asked = tokens, plan.deferred, steps.repeats
        yield 'deferred', list(deferred.measure(policy, *asked, device))
        size = plan.cache * tokens * policy.config.kv_bytes_per_token
        yield 'capacity', [serve.capacity(policy, tokens, size)]


main = command('compress.speed', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
