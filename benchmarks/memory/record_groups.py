"""KEEP as published, the node's KEEP and CacheBlend over groups of records, by the deeper judge.

Source: KEEP, sections 4.1, 4.2 and 6.2, tables 1 and 3, in accuracy.

The judge of eight layers (`records`) answers about records whose KV was computed in one of three
constructions: over the groups that the memory node makes with its default encoder and parameters
from sentences about the records (`grouped`), over true groups (a record joins the group of its
antecedent, up to the node's number of members), and each record alone. Each group is static with
probability 0.5; the records of other groups are computed alone, as in a dynamic group.

Settings, fixed before any result:
- Problems: 50 of each cell of 10, 20 or 30 records and 0 to 3 links, 600 in all, seed
  9_100_003; the same ones in every construction and way. 150 of them have no link.
- Ways: KEEP as published has directed hops, a falling share and no `restart`, and reads the
  attention of all tokens. CacheBlend by token has an even share, as the node's KEEP, or a gradual
  one, as in its paper.
- Shares of memory in the layers beyond the first: 0.1, 0.2 and 0.4, equal for all ways.
- Claim of the paper, which holds if the lower end of the 95% interval of the paired difference is
  above 0: KEEP as published over the encoder's groups is right more often than CacheBlend by token
  over each record alone and over the same groups. In the paper KEEP is 4.1 points above CacheBlend
  with a model of 32 billion parameters, 4.9 with 14 billion.
- The gate of `training.records.gate` must hold; `--ungated` compares another judge, and the
  figures state that its gate does not hold.

Physics: a question with l links needs l + 1 records. Full reuse answers it where these are in one
static group. A group of 8 of S records that was made by chance holds a link with a probability of
7 / (S - 1), and half of all groups are static.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.common.command import BenchmarkError, command
from benchmarks.common.paired import paired
from benchmarks.common.report import show
from benchmarks.memory.construction import (
    ALONE,
    BLEND,
    ENCODED,
    GROUPS,
    KEEP,
    PUBLISHED,
    STATIC,
    way,
)
from benchmarks.memory.grouped import (
    encoded_groups,
    linked_groups,
    pieces_of,
    record_sentence,
)
from benchmarks.memory.judge_ask import Problem
from benchmarks.memory.judge_batch import ProblemBatch
from benchmarks.memory.records import GATE, LINKS, SHARES, built, questions, units
from embodied_kv.memory.encoder import Encoder, encoder
from embodied_kv.model.planner import Planner
from training.evaluate.report import rate
from training.judge.file import BUNDLED, load_judge
from training.records.gate import SIZES, gate
from training.records.records import TOKENS, Records

PROBLEMS, SEED = 50, 9_100_003
CONSTRUCTIONS = (ENCODED, GROUPS, ALONE)
BOUNDS = {1.0: 'full recompute', 0.0: 'full reuse'}  # by share
COMPARED = (PUBLISHED, KEEP, BLEND, f'{BLEND}, gradual')
# KEEP over the encoder's groups, and the CacheBlend and construction that it is compared with.
PAIRS = tuple(product(COMPARED[:2], COMPARED[2:], (ENCODED, ALONE)))
Key = tuple[float, str, str]  # share, construction, way


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this part."""
    parser.add_argument('--judge', type=Path, default=BUNDLED / 'records.safetensors')
    parser.add_argument('--problems', type=int, default=PROBLEMS, help='of a cell')
    parser.add_argument('--records', type=int, nargs='+', default=list(SIZES), help='of memory')
    parser.add_argument(
        '--ungated', action='store_true', help='compare and state it if the gate does not hold'
    )


def run(args: argparse.Namespace) -> dict:
    """Ask, print the tables, and return all figures.

    Raises BenchmarkError if the gate does not hold, unless --ungated is given.
    """
    torch.set_num_threads(1)
    model, meaning = load_judge(args.judge), encoder()
    gated = gate(model, **GATE)
    if not (gated.holds or args.ungated):
        raise BenchmarkError(f'this judge cannot tell ways of reuse apart: {gated.said()}')
    right, held = collect(model, meaning, args.records, args.problems)
    figures = dict(
        settings=dict(seed=SEED, problems=args.problems, static=STATIC, encoder=meaning.name),
        gate=gated.said(),
        links_in_groups=held,
        rows=rows(right),
        differences=differences(right),
    )
    if not args.json:
        facts = ('full', 'reuse', 'loss', 'n', 'holds')
        show('the gate', [{name: gated.said()[name] for name in facts}])
        show(f'right answers, %; encoder: {meaning.name}', figures['rows'])
        note = 'points, the same problems; low, high: its 95% interval'
        show('KEEP less CacheBlend', figures['differences'], note)
        show('links of which both records are in one static group, %', [held])
    return figures


def collect(
    model: Planner, meaning: Encoder, sizes: Sequence[int], count: int
) -> tuple[dict[Key, list[bool]], dict[str, float]]:
    """Return right answers by share, construction and way, in the same order.

    Also returns the share (%) of links whose two records are in one static group, by construction.
    """
    right: dict[Key, list[bool]] = {}
    held: dict[str, list[float]] = {construction: [] for construction in CONSTRUCTIONS}
    layers = model.config.backbone.layers
    cells = [(size, links) for size in sizes for links in LINKS]
    with Progress(console=Console(stderr=True)) as bar:
        for size, links in bar.track(cells, description='cells'):
            drawn = list(questions(count, SEED, size, links))
            for construction in CONSTRUCTIONS:
                problems = []
                for asked, kept in constructed(drawn, construction, meaning):
                    problems.append(asked)
                    held[construction].append(kept)
                batch = ProblemBatch(model, problems)
                for share, name in (*BOUNDS.items(), *product(SHARES, COMPARED)):
                    said = batch.ask(way(name, share, layers)).right.tolist()
                    right.setdefault((share, construction, name), []).extend(said)
    return right, {name: 100 * float(np.mean(shares)) for name, shares in held.items()}


def constructed(
    drawn: Sequence[tuple[Records, int, int, int]], construction: str, meaning: Encoder
) -> Iterator[tuple[Problem, float]]:
    """Yield each question's problem over a construction, and the share of links in its groups."""
    for number, (records, row, record, attribute) in enumerate(drawn):
        like, names = records.like[row], records.names[row]
        index = np.arange(len(like))
        if construction == GROUPS:
            first = linked_groups(like.tolist())
        elif construction == ENCODED:
            antecedents = np.where(like < 0, -1, names[np.maximum(like, 0)])
            said = zip(names, antecedents, records.said[row], strict=True)
            sentences = [record_sentence(*about) for about in said]
            first = encoded_groups(meaning, sentences, TOKENS)
        else:
            first = index
        lucky = np.random.default_rng((SEED, len(like), number)).random(len(like)) < STATIC
        static = lucky[first] & (construction != ALONE)
        inside = static[1:] & (first[1:] == first[like[1:]])
        pieces = pieces_of(units(records, row), first, static)
        yield built(records, row, record, attribute, pieces), float(inside.mean())


def rows(right: dict[Key, list[bool]]) -> list[dict]:
    """Return a row per share, construction and way, with Wilson's interval."""
    found = []
    for (share, construction, name), said in right.items():
        own = rate(sum(said), len(said))
        found.append(
            dict(share=share, construction=construction, way=name, right=100 * own['rate'])
            | dict(low=100 * own['low'], high=100 * own['high'], n=own['n'])
        )
    return found


def differences(right: dict[Key, list[bool]]) -> list[dict]:
    """Return a row per share and pair: how much more often KEEP is right than CacheBlend."""
    found = []
    for share in SHARES:
        for keep, blend, other in PAIRS:
            said = right[share, ENCODED, keep]
            differs = paired(said, right[share, other, blend], range(len(said)))
            found.append(
                dict(share=share, keep=f'{keep}, {ENCODED}', other=f'{blend}, {other}')
                | {name: 100 * differs[name] for name in ('difference', 'low', 'high')}
            )
    return found


main = command('memory.record_groups', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
