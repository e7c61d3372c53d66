"""Answers from a compressed prefix compared with those from the whole, question by question.

Source: VL-Cache, sections 5.1 and A.2.

Frames come from unseen scenes. About each, every kind of question that it allows is asked, with
the simulator's truth; an answer is right letter by letter. All ways (see `ways`) answer the same
questions from the same prefill, greedily, in one batch. In `stream` the first token of an answer
still reads the whole prefix, as it is served, and short answers are half complete by then:
`strict` is the harder test of what was kept. `tally` has the claim. Settings are in `ways` and
here; none depends on a result.

Physics: an answer that reads b bytes of keys and values instead of B saves 1 - b / B of them.
Whether it is still the same answer has to be measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.common.command import command
from benchmarks.compress import plots
from benchmarks.compress.cache import Harness
from benchmarks.compress.loop import closed_loop
from benchmarks.compress.policy import add_policy, load, settings, show
from benchmarks.compress.questions import SCENES, moments
from benchmarks.compress.tally import Tally, pivot, row, verdict
from benchmarks.compress.ways import (
    METHODS,
    MODES,
    OURS,
    TENTH,
    Way,
    all_ways,
    default,
    judged,
)
from embodied_kv.model.policy import Policy

FRAMES = 250  # about 8.7 questions each: more than 2,000
MAX_TOKENS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    add_policy(parser, FRAMES)
    parser.add_argument(
        '--episodes', type=int, default=0, help='in closed loop, of each family; 0: none'
    )


def run(args: argparse.Namespace) -> dict:
    """Answer all questions, print the tables, and return all figures."""
    policy, ways = load(args), all_ways()
    tally = collect(policy, ways, args.frames)
    rows = [row(tally, way) for way in (None, *ways)]
    result = settings(args) | dict(
        questions=len(tally.kinds),
        tokens_per_answer=float(np.mean(tally.tokens)),
        rows=rows,
        verdicts=[verdict(tally, way) for way in judged()],
        kinds=kinds(tally),
        closed_loop=closed_loop(policy, args.episodes) if args.episodes else [],
    )
    if not args.json:
        tables = {f'right answers, %, {by}': pivot(rows, by) for by in MODES}
        tables |= {'right answers, %, by threshold p': sweep(rows)}
        tables |= {name: result[name] for name in ('kinds', 'verdicts', 'closed_loop')}
        show('quality', args, tables)
        plots.quality(rows)
    return result


def collect(policy: Policy, ways: Sequence[Way], frames: int, scenes: int = SCENES) -> Tally:
    """Tally all questions about `frames` frames, in all ways; progress goes to stderr."""
    harness, tally = Harness(policy, ways, MAX_TOKENS), Tally()
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task('frames', total=frames)
        for number, (frame, questions) in enumerate(moments(policy.config, frames, scenes)):
            recorded = harness.prefill(frame.observation)
            for question in questions:
                said = harness.answers(harness.ask(recorded, question.text), (None, *ways))
                tally.frames.append(number)
                tally.kinds.append(question.kind)
                tally.tokens.append(said[None].tokens)
                for way, answer in said.items():
                    tally.right[way].append(answer.text.strip() == question.truth)
                    tally.kept[way].append(answer.kept)
            harness.release(recorded)
            bar.advance(task)
    return tally


def kinds(tally: Tally) -> list[dict]:
    """Return right answers by kind of question at a tenth; a row per kind and mode."""
    kind, rows = np.array(tally.kinds), []
    for name in dict.fromkeys(tally.kinds):
        some = kind == name
        for by in MODES:
            ways = [*(Way(method, TENTH, by) for method in METHODS), default(by)]
            counts = {way.label: int(tally.of(way)[some].sum()) for way in ways}
            full = int(tally.of(None)[some].sum())
            rows.append(dict(kind=name, n=int(some.sum()), by=by, full=full) | counts)
    return rows


def sweep(rows: Sequence[dict]) -> list[dict]:
    """Return our results by threshold: a row per mode and p, a column per keep ratio."""
    shown: dict[tuple, dict] = {}
    for r in sorted((r for r in rows if r['label'] == OURS), key=lambda r: (r['by'], r['p'])):
        line = shown.setdefault((r['by'], r['p']), dict(by=r['by'], p=r['p']))
        line[f'{r["keep_ratio"]:.0%}'] = 100 * r['right']['rate']
    return list(shown.values())


main = command('compress.quality', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
