"""The effect of KEEP's groups, hops and segments on accuracy: table 3 on chains.

Memory consists of the judge's chains (`judge`), half of which are static: the unchanged segments
of such a chain form a group, whose KV is computed jointly and which is contiguous in the prompt.
Without static-dynamic construction the KV is computed for each segment alone, or for blocks of
four segments in order of arrival. Each way is what the node runs with its defaults, except for
what its name states. Loads that are not balanced change no answer (a test checks this) and are
left out.

The groups here are the true chains, because the benchmark knows which segments are linked.
`memory.groups` has to guess that by meaning, so the gain of groups here is an upper bound for it.

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
from benchmarks.memory.judge_ask import Problem, problem
from benchmarks.memory.judge_batch import ProblemBatch
from benchmarks.memory.judge_ways import LINKS, SHARES, SIZES, Part, average
from benchmarks.memory.reuse_variants import VariantConfig, variant_method
from embodied_kv.memory.prompt import Piece
from embodied_kv.memory.reuse import Reuse
from training.evaluate.report import rate
from training.judge.chains import LAYOUTS, MAX_HOPS, Chains, furthest
from training.judge.exam import draw_cell
from training.judge.file import JUDGE, bundled_judge, load_judge

PART = Part(judges=(1, 2), seed=8_000_009, problems=6)
STATIC = 0.5  # share of the chains
BLOCK = 4  # segments
GROUPS, ALONE, BLOCKS = 'groups', 'each alone', f'blocks of {BLOCK}'
CONSTRUCTIONS = (GROUPS, ALONE, BLOCKS)
KEEP = 'keep'
WAYS = {
    'full recompute': dict(reuse_method='full'),
    KEEP: {},
    'keep without hops': dict(max_walk_hops=0),
    'cacheblend by token': dict(reuse_method='cacheblend', granularity='token'),
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
        note = 'difference: to KEEP with groups, points, the same problems; least, most: its 95%'
        show('right answers, %, by construction', figures['rows'], note)
    return figures


def collect(sizes: Sequence[int], count: int) -> dict[tuple[float, str, str], list[bool]]:
    """Return right answers by share, construction and way; the lists have the same order."""
    right, layers = {}, JUDGE.backbone.layers
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
                    batch = ProblemBatch(model, list(constructed(chains, built, static < STATIC)))
                    for share in SHARES:
                        for name in WAYS:
                            said = batch.ask(way(name, share, layers)).right.tolist()
                            right.setdefault((share, built, name), []).extend(said)
    return right


def way(name: str, share: float, layers: int) -> Reuse:
    """Return the method as the node runs it. share: of memory, in each layer but the first."""
    config = VariantConfig(recompute_ratio=average(share, layers), **WAYS[name])
    return variant_method(config.reuse_method, config, layers)


def constructed(chains: Chains, construction: str, static: np.ndarray) -> Iterator[Problem]:
    """Yield the problems with the units of a construction.

    static: whether a chain is static, bool [B, S], indexed by the first segment of the chain. A
    static chain is contiguous in the prompt, at the position of the first of its segments there.
    """
    first = furthest(chains.behind, MAX_HOPS)  # [B, S]: the chain of each segment
    for row, of in enumerate(first):
        index = np.arange(len(of))
        joint = static[row][of] if construction == GROUPS else np.zeros(len(of), bool)
        front = {chain: int(index[of == chain].min()) for chain in of}
        place = np.where(joint, [front[chain] for chain in of], index)
        seen: dict[str, int] = {}
        pieces = []
        for i in np.lexsort((index, place)):
            unit = f'chain {of[i]}' if joint[i] else f'alone {i}'
            unit = f'block {i // BLOCK}' if construction == BLOCKS else unit
            ids = int(chains.keys[row, i]), int(chains.values[row, i])
            pieces.append(Piece(str(i), ids, unit, seen.get(unit, 0)))
            seen[unit] = seen.get(unit, 0) + len(ids)
        yield problem(chains, row, pieces)


def rows(right: dict[tuple[float, str, str], list[bool]]) -> list[dict]:
    """Return a row per share, construction and way, with its difference to KEEP with groups."""
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
