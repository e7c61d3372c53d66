"""The effect of KEEP's groups, hops and segments on accuracy: table 3 on chains.

Memory consists of the judge's chains (`judge`), half of which are static: the unchanged segments
of such a chain form a group, whose KV is computed jointly and which is contiguous in the prompt.
Without static-dynamic construction the KV is computed for each segment alone, or for blocks of
four segments in order of arrival. Each way is what the node runs with its defaults, except for
what its name states. Loads that are not balanced change no answer (a test checks this) and are
left out.

The groups are the true chains, which the benchmark knows, or those that the memory node makes with
its default encoder from sentences about the same segments (`grouped`). The node has to guess links
by meaning, so the true chains are an upper bound for it.

Physics: no way of reuse has to recompute what a group contains. Half of the chains are complete by
construction, so full reuse answers them correctly; the others depend on what is recomputed. Blocks
of unrelated segments contain no complete link.

Source: KEEP, sections 4.1 and 6.3, table 3.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.common.command import command
from benchmarks.common.paired import paired
from benchmarks.common.report import show
from benchmarks.memory.grouped import chain_sentence, encoded_groups, pieces_of
from benchmarks.memory.judge_ask import Problem, problem
from benchmarks.memory.judge_batch import ProblemBatch
from benchmarks.memory.judge_ways import LINKS, SHARES, SIZES, Part, average
from benchmarks.memory.reuse_variants import VariantConfig, variant_method
from embodied_kv.memory.encoder import Encoder, encoder
from embodied_kv.memory.reuse import Reuse
from training.evaluate.report import rate
from training.judge.chains import LAYOUTS, MAX_HOPS, Chains, furthest
from training.judge.exam import draw_cell
from training.judge.file import JUDGE, bundled_judge, load_judge

PART = Part(judges=(1, 2), seed=8_000_009, problems=6)
STATIC = 0.5  # share of the chains
BLOCK = 4  # segments
GROUPS, ENCODED = 'true groups', "the encoder's groups"
ALONE, BLOCKS = 'each alone', f'blocks of {BLOCK}'
CONSTRUCTIONS = (GROUPS, ENCODED, ALONE, BLOCKS)
KEEP, PUBLISHED = 'keep', 'keep as published'
BLEND = 'cacheblend by token'
WAYS = {
    'full recompute': dict(reuse_method='full'),
    KEEP: {},
    PUBLISHED: dict(recompute_schedule='falling', restart=0.0, scoring_tokens=0),
    'keep without hops': dict(max_walk_hops=0),
    BLEND: dict(reuse_method='cacheblend', granularity='token'),
    f'{BLEND}, gradual': dict(
        reuse_method='cacheblend', granularity='token', recompute_schedule='gradual'
    ),
    'cacheblend by segment': dict(reuse_method='cacheblend', granularity='segment'),
    'full reuse': dict(reuse_method='full_reuse'),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this part."""
    parser.add_argument(
        '--problems', type=int, default=PART.problems, help='of a cell and a judge'
    )
    parser.add_argument('--segments', type=int, nargs='+', default=list(SIZES), help='of memory')


def run(args: argparse.Namespace) -> dict:
    """Ask, print the table, and return all figures."""
    figures = dict(settings=vars(PART) | dict(static=STATIC, problems=args.problems))
    figures['rows'] = rows(collect(args.segments, args.problems))
    if not args.json:
        note = 'difference: to KEEP on true groups, points; least, most: its 95%'
        show('right answers, %, by construction', figures['rows'], note)
    return figures


def collect(sizes: Sequence[int], count: int) -> dict[tuple[float, str, str], list[bool]]:
    """Return right answers by share, construction and way; the lists have the same order."""
    right, layers, meaning = {}, JUDGE.backbone.layers, encoder()
    cells = [(s, layout, links) for s in sizes for layout in LAYOUTS for links in LINKS]
    with Progress(console=Console(stderr=True)) as bar:
        for judge in PART.judges:
            model = load_judge(bundled_judge(judge))
            for number, cell in enumerate(bar.track(cells, description=f'judge {judge}')):
                chains = draw_cell(count, PART.seed + judge, *cell)
                static = np.random.default_rng((PART.seed, judge, number)).random(
                    chains.keys.shape
                )
                for built in CONSTRUCTIONS:
                    problems = constructed(chains, built, static < STATIC, meaning)
                    batch = ProblemBatch(model, list(problems))
                    for share in SHARES:
                        for name in WAYS:
                            said = batch.ask(way(name, share, layers)).right.tolist()
                            right.setdefault((share, built, name), []).extend(said)
    return right


def way(name: str, share: float, layers: int) -> Reuse:
    """Return the method as the node runs it. share: of memory, in each layer but the first."""
    config = VariantConfig(recompute_ratio=average(share, layers), **WAYS[name])
    return variant_method(config.reuse_method, config, layers)


def constructed(
    chains: Chains, construction: str, static: np.ndarray, meaning: Encoder
) -> Iterator[Problem]:
    """Yield the problems with the units of a construction.

    static: whether a group is static, bool [B, S], indexed by the first segment of the group (of a
    true chain: the first of its links). A static group is contiguous in the prompt, at the
    position of the first of its segments there. meaning: makes the encoder's groups.
    """
    starts = furthest(chains.behind, MAX_HOPS)  # [B, S]: the chain of each segment
    for row, of in enumerate(starts):
        pairs = np.stack([chains.keys[row], chains.values[row]], -1).tolist()
        first = index = np.arange(len(of))
        joint = np.full(len(of), construction == BLOCKS)
        if construction == BLOCKS:
            first = index // BLOCK * BLOCK
        elif construction == GROUPS:
            first = np.array([int(index[of == chain].min()) for chain in of])
            joint = static[row][of]
        elif construction == ENCODED:
            sentences = [chain_sentence(*pair) for pair in pairs]
            first = encoded_groups(meaning, sentences, len(pairs[0]))
            joint = static[row][first]
        yield problem(chains, row, pieces_of(pairs, first, joint))


def rows(right: dict[tuple[float, str, str], list[bool]]) -> list[dict]:
    """Return a row per share, construction and way, with its difference to KEEP on true groups."""
    found = []
    for (share, built, name), said in right.items():
        keep = np.asarray(right[share, GROUPS, KEEP])
        said, differs = np.asarray(said), paired(said, keep, np.arange(len(said)))
        own = rate(int(said.sum()), len(said))
        found.append(
            dict(share=share, construction=built, way=name, right=100 * own['rate'])
            | dict(low=100 * own['low'], high=100 * own['high'], n=own['n'])
            | dict(difference=100 * differs['difference'])
            | dict(least=100 * differs['low'], most=100 * differs['high'])
        )
    return found


main = command('memory.construction', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
