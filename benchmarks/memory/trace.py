"""An embodied trace: a household, updates between questions, and memory stored in each way.

Two planners run the same stories: the answers of the trained one measure how often a way is right;
a larger one with random weights is timed, because a prefill of the trained one takes hardly any
time. All numbers were fixed in settings.yaml before any result.

Text (full, prefix) is retrieved by segment; full_reuse, epic and cacheblend store blocks of a
fixed number of segments, and retrieve blocks; keep has groups. KEEP recomputes the same share as
CacheBlend, mean over the layers. The time to the first token counts from the question on and
includes the recomputation of invalidated KV that this question needs; the rest is recomputed after
its answer, as on a robot. `outdated` counts segments in view whose text is not current: it must be
0. A stale answer was true before the last update that mattered and was given although the present
truth was in view (`told`); where it was not in view, any answer is a guess, which may be stale.

Physics: a plan that computes a share s of its prompt is at most 1 / s times as fast as text. In
KEEP and CacheBlend alike all of memory passes through the first layer, 1/8 of this planner and
1/48 of the paper's, and attention covers all of it. KEEP's choice is a second attention of some
tokens with its weights added up: on a GPU it runs in parallel with other work, on one core after
it. The paper's baseline also waits for loads over a bus; here loads are copies within the same
memory, which share the core with computation.

Source: KEEP, section 6.2, table 1 and figure 9.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.memory import floor, plots, tables
from benchmarks.memory.asking import Reply, ask_all, ram
from benchmarks.memory.settings import PATH, load_settings
from benchmarks.memory.ways import (
    BLEND,
    FULL,
    KEEP,
    Way,
    answering,
    full_view,
    timed,
    trace_ways,
)

PAPER = {  # figure 9, 40 segments: Qwen-2.5-14B, and 32B in INT4
    FULL: (2.19, 2.68),
    BLEND: (1.56, 2.17),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this part."""
    parser.add_argument(
        '--planner',
        default='planner_missions',
        help='who is asked: a bundled planner, a folder, or random',
    )
    add_common(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all parts with settings share."""
    parser.add_argument('--quick', action='store_true', help='few questions, in a minute')
    parser.add_argument('--settings', type=Path, default=PATH, help='what is fixed')


def begin(args: argparse.Namespace) -> dict:
    """Return the first figures of every part, and use one thread from here on."""
    torch.set_num_threads(1)
    return dict(
        quick=args.quick,
        planner=getattr(args, 'planner', None),
        settings=asdict(load_settings(args.settings, args.quick)),
        files_in_ram=ram() is not None,
        load=[os.getloadavg()[0]],
    )


def run(args: argparse.Namespace) -> dict:
    """Ask, time, print the tables, and return all figures."""
    result, settings = begin(args), load_settings(args.settings, args.quick)
    ways, counts = trace_ways(settings.construction.block), settings.retrieved
    said, large = answering(args.planner), timed(settings)
    machine = floor.ceilings()
    with Progress(console=Console(stderr=True)) as bar:
        told = [w for w in ways if w.timed]
        slow = ask_all(told, large, settings, settings.speed, counts, bar, 'timed')
        quick = ask_all(ways, said, settings, settings.accuracy, counts, bar, 'answered')
    found = dict(
        accuracy=[tables.answers(quick, w.name, n) for n in counts for w in ways],
        seconds=[
            tables.seconds(slow, w.name, n, large.config, machine) for n in counts for w in told
        ],
        spent=[tables.spent(slow, w.name, n) for n in counts for w in told],
        differences=differences(quick, ways, counts),
        target=[tables.target(quick, slow, n) for n in counts],
        paper=paper(slow) if 40 in counts else [],
    )
    result['load'].append(os.getloadavg()[0])
    result |= dict(ceilings=asdict(machine), **found)
    if not args.json:
        show(result, args.planner)
        plots.trace(found['accuracy'], found['seconds'])
    return result


def differences(
    replies: Sequence[Reply], ways: Sequence[Way], counts: Sequence[int]
) -> list[dict]:
    """Compare KEEP with CacheBlend, by number of segments and in all.

    In addition, each way of reuse is compared with full recompute of the same view.
    """
    rows = [tables.differ(replies, KEEP, BLEND, n) for n in (*counts, None)]
    reusing = [way for way in ways if way.method != FULL]
    rows += [tables.differ(replies, w.name, full_view(w.blocks), None) for w in reusing]
    return rows


def paper(replies: Sequence[Reply]) -> list[dict]:
    """Return the ratio of other ways' times to KEEP's with 40 segments, in the paper and here."""
    return [
        dict(
            keep_beside=other,
            paper_14B=small,
            paper_32B=large,
            here=tables.faster(replies, KEEP, other, 40),
        )
        for other, (small, large) in PAPER.items()
    ]


def show(result: dict, planner: str) -> None:
    """Print the tables."""
    c, ceilings = result['settings']['planner'], result['ceilings']
    size = f'{c["width"]} wide, {c["layers"]} layers, random weights'
    rates = f'{ceilings["gflops"]:.0f} GFLOP/s, {ceilings["gbytes"]:.1f} GB/s'
    titles = dict(
        accuracy=(f'right answers, %, of {planner}', 'computed: % of the prompt, fresh with it'),
        differences=('right answers, points, first less second, the same questions', ''),
        seconds=(f'time to the first token, medians; planner {size}', f'ceilings: {rates}'),
        spent=('where that time goes, means', ''),
        target=('KEEP beside CacheBlend', 'met: faster, and not seen to be less often right'),
        paper=('40 segments, how many times the time of KEEP', ''),
    )
    for name, (title, note) in titles.items():
        if result[name]:
            report.show(title, result[name], note)


main = command('memory.trace', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
