"""Answers from a compressed prefix, question by question beside those from the whole.

Source: VL-Cache, sections 5.1 and A.2.

Frames of unseen scenes; of each, every kind of question that it allows, with the simulator's
truth; an answer is right letter by letter. All ways answer the same questions from the same
prefill, greedily, in one batch. `compress_ways` says which ways there are. In `stream` the first
token of an answer still reads the whole prefix, as it is served, and short answers are half said
by then: `strict` is the harder test of what was kept.

The claim: at 10% ours is non-inferior to the whole within 2 points, if the one-sided 95% bound of
the paired difference is above -2 points. Settings are in `compress_ways` and here; none depends on
a result.

Physics: an answer that reads b bytes of keys and values instead of B saves 1 - b / B of them;
whether it is still the same answer is not physics.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.progress import Progress

from embodied_kv.bench import compress_plots
from embodied_kv.bench.compress_cache import Harness
from embodied_kv.bench.compress_loop import closed_loop
from embodied_kv.bench.compress_paired import paired
from embodied_kv.bench.compress_policy import add_policy, load, settings, show
from embodied_kv.bench.compress_questions import moments
from embodied_kv.bench.compress_ways import METHODS, MODES, OURS, TENTH, WIDE, P, Way, all_ways
from embodied_kv.model.policy import Policy
from embodied_kv.train.evaluate_report import rate

FRAMES = 250  # about 8.7 questions each: more than 2,000
MARGIN = 0.02
MAX_TOKENS = 32
WHOLE = dict(by='', method='full', p=P, alpha=1.0)
SPILL = 0.005  # a baseline that keeps more than alpha by so much has another budget


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this part."""
    add_policy(parser, FRAMES)
    parser.add_argument(
        '--episodes', type=int, default=0, help='in closed loop, of each family; 0: none'
    )


@dataclass
class Tally:
    """Whether each question was answered right, in each way and from the whole (None)."""

    right: dict[Way | None, list[bool]] = field(default_factory=lambda: defaultdict(list))
    kept: dict[Way, list[float]] = field(default_factory=lambda: defaultdict(list))
    frames: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def of(self, way: Way | None) -> np.ndarray:
        return np.array(self.right[way])

    def against(self, way: Way | None, other: Way | None = None) -> dict:
        return paired(self.of(way), self.of(other), self.frames)


def run(args: argparse.Namespace) -> dict:
    """Answers, prints the tables, and returns all figures."""
    policy, ways = load(args), all_ways()
    tally = collect(policy, ways, args.frames)
    rows = [row(tally, way) for way in (None, *ways)]
    result = settings('quality', args) | dict(
        questions=len(tally.kinds),
        tokens_per_answer=float(np.mean(tally.tokens)),
        rows=rows,
        verdicts=[verdict(tally, by, method) for by in MODES for method in (OURS, WIDE)],
        kinds=kinds(tally),
        closed_loop=closed_loop(policy, args.episodes) if args.episodes else [],
    )
    if not args.json:
        tables = {f'right answers, %, {by}': pivot(rows, by) for by in MODES}
        tables |= {'right answers, %, by threshold p': sweep(rows)}
        tables |= {name: result[name] for name in ('kinds', 'verdicts', 'closed_loop')}
        show('quality', args, tables)
        compress_plots.quality(rows)
    return result


def collect(policy: Policy, ways: Sequence[Way], frames: int) -> Tally:
    """All questions about so many frames, in all ways; a bar on stderr meanwhile."""
    harness, tally = Harness(policy, ways, MAX_TOKENS), Tally()
    size, dt = policy.config.vision.image_size, policy.config.action_dt
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task('frames', total=frames)
        for number, (frame, questions) in enumerate(moments(size, dt, frames)):
            seen = harness.see(frame.observation)
            for question in questions:
                said = harness.answers(harness.ask(seen, question.text), (None, *ways))
                tally.frames.append(number)
                tally.kinds.append(question.kind)
                tally.tokens.append(said[None].tokens)
                for way, answer in said.items():
                    tally.right[way].append(answer.text.strip() == question.truth)
                    tally.kept[way].append(answer.kept)
            harness.forget(seen)
            bar.advance(task)
    return tally


def row(tally: Tally, way: Way | None) -> dict:
    """One way: what it kept, its rate with Wilson's interval, and the difference to the whole."""
    right = tally.of(way)
    named = dict(by=way.by, method=way.method, p=way.p, alpha=way.alpha) if way else WHOLE
    return dict(
        named,
        kept=float(np.mean(tally.kept[way])),
        right=rate(int(right.sum()), len(right)),
        to_whole=tally.against(way),
    )


def verdict(tally: Tally, by: str, method: str = OURS) -> dict:
    """At a tenth: ours against the whole and against the best of the others that keep as much."""
    ours = Way(method, TENTH, by)
    others = [
        way
        for way in tally.right
        if way and (way.by, way.alpha) == (by, TENTH) and way.method not in (OURS, WIDE)
        if np.mean(tally.kept[way]) <= TENTH + SPILL
    ]
    to_whole = tally.against(ours)
    found = dict(
        by=by,
        method=method,
        full=float(tally.of(None).mean()),
        ours=float(tally.of(ours).mean()),
        difference=to_whole['difference'],
        bound=to_whole['bound'],
        non_inferior=to_whole['bound'] > -MARGIN,
    )
    if not others:  # prefixes too short for a tenth
        return found | dict(best='', best_rate=0.0, to_best=0.0, low=0.0, high=0.0)
    best = max(others, key=lambda way: tally.of(way).sum())
    to_best = tally.against(ours, best)
    return found | dict(
        best=best.method,
        best_rate=float(tally.of(best).mean()),
        to_best=to_best['difference'],
        low=to_best['low'],
        high=to_best['high'],
    )


def kinds(tally: Tally) -> list[dict]:
    """Right answers by kind of question at a tenth; a row per kind and mode."""
    kind, rows = np.array(tally.kinds), []
    for name in dict.fromkeys(tally.kinds):
        some = kind == name
        for by in MODES:
            counts = {m: int(tally.of(Way(m, TENTH, by))[some].sum()) for m in METHODS}
            full = int(tally.of(None)[some].sum())
            rows.append(dict(kind=name, n=int(some.sum()), by=by, full=full) | counts)
    return rows


def pivot(rows: Sequence[dict], by: str) -> list[dict]:
    """A row per method, a column per alpha; a star where more than alpha was kept."""
    whole, shown = f'{100 * rows[0]["right"]["rate"]:.1f}', {}
    for r in rows[1:]:
        if (r['by'], r['p']) == (by, P):
            line = shown.setdefault(r['method'], dict(method=r['method']))
            star = '*' * (r['kept'] > r['alpha'] + SPILL)
            line[f'{r["alpha"]:.0%}'] = f'{100 * r["right"]["rate"]:.1f}{star}'
    return [line | {'100%': whole} for line in shown.values()]


def sweep(rows: Sequence[dict]) -> list[dict]:
    """Ours by threshold: a row per mode and p, a column per alpha."""
    shown: dict[tuple, dict] = {}
    for r in sorted((r for r in rows if r['method'] == OURS), key=lambda r: (r['by'], r['p'])):
        line = shown.setdefault((r['by'], r['p']), dict(by=r['by'], p=r['p']))
        line[f'{r["alpha"]:.0%}'] = 100 * r['right']['rate']
    return list(shown.values())
