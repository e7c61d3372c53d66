"""Capsules against an automatic prefix cache of the same bytes: hits, and time to the first token.

Contexts of a robot (skills, subgoals) are visited in a cycle, uniformly at random, or with Zipf's
popularity, which is independent of the order of their arrival. Each visit asks another question.
- pinned: capsules of whole contexts; the first ones that fit stay.
- lru: capsules of whole contexts; the least recently used one is evicted.
- blocks: an automatic prefix cache, KV in blocks of 16 tokens, evicted one by one, least recently
  used first. Questions fill blocks, too, as they do in a server.

All three have the same bytes, the same planner and the same cold path, in calls of 512 tokens.
Before the first counted visit each context has been stored once, in order. Storing is not timed.
Every visit asserts that the three ways have equal logits up to the rounding of other shapes.

Physics: a visit computes the tokens that are not stored, at two operations per weight and token.
A restored capsule copies the KV of its context once; blocks are copied too, which paged attention
would not need. A cycle through more contexts than fit is the worst case of any cache that evicts
the least recently used part. Contexts with a common beginning store it once in blocks, and in each
capsule. The planner has full attention in all layers: the state of a recurrent layer is a fold of
all tokens before it, has no positions, and cannot be put together from blocks; blocks would need a
snapshot of that state at each boundary, which is a capsule.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product

import numpy as np
import torch

from benchmarks.capsule.attention import PLANNERS, AttentionPart, AttentionPlanner
from benchmarks.capsule.blocks import TOKENS, BlockCache
from benchmarks.capsule.figures import MB, Stores, tail
from benchmarks.capsule.planner import PAST, QUESTION, Store, prompt
from benchmarks.common import clock, report
from benchmarks.common.command import add_device, command
from benchmarks.common.ratio import interval
from benchmarks.common.scene import FullPolicy
from embodied_kv.capsule.capsule import Capsule
from embodied_kv.capsule.tiers import TierCapacities
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.transfer import held_bytes
from embodied_kv.model.dtype import served

ACCESS = ('cyclic', 'uniform', 'zipf')
ROUNDING = 0.05  # largest difference of logits over their size, in bfloat16


@dataclass(frozen=True)
class Plan:
    """The amount of measurement.

    context: tokens of a context, in addition to PAST. shared: first tokens that all contexts have
    in common. kept: contexts that the stores have bytes for. sets: numbers of contexts. draws:
    independent orders of visits, for each access. visits: of a draw.
    """

    context: int
    shared: tuple[int, ...]
    kept: int
    sets: tuple[int, ...]
    draws: int
    visits: int


PLANS = {
    'full': Plan(context=256, shared=(0, 128), kept=6, sets=(3, 6, 9, 12), draws=6, visits=12),
    'quick': Plan(context=128, shared=(0, 64), kept=2, sets=(1, 2, 4), draws=2, visits=4),
}


@dataclass(frozen=True, eq=False)
class Context:
    """A prefix and its capsule."""

    tokens: list[int]
    capsule: Capsule


class Capsules:
    """Whole contexts as capsules."""

    def __init__(self, planner: AttentionPlanner, stores: Stores, room: int, pins: bool) -> None:
        capacities = TierCapacities(device=0, host=room, policy='refuse' if pins else 'drop')
        self._planner, self._store = planner, Store(stores.open(capacities), pins)

    def keep(self, context: Context) -> None:
        """Store the capsule of a context, if its store allows it."""
        if not self._store.holds(context.capsule):
            self._store.keep(context.capsule)

    def answer(self, context: Context, question: list[int]) -> int:
        """Compute the next logits; return how many tokens of the context were not computed."""
        if self._store.holds(context.capsule):
            self._store.capsules.rollback(context.capsule.name)
            self._planner.append(question)
            return len(context.tokens)
        self._planner.prefill(context.tokens + question)
        return 0

    def after(self, context: Context, question: list[int]) -> None:
        """Store the context of the last answer."""
        self.keep(context)


class Blocks:
    """Contexts and questions as blocks of an automatic prefix cache."""

    def __init__(self, planner: AttentionPlanner, room: int) -> None:
        self._planner, self._cache = planner, BlockCache(room, planner.k)

    def keep(self, context: Context) -> None:
        """Store the KV of a context."""
        k, v = (context.capsule.tensors[f'planner/{name}'].unsqueeze(1) for name in ('k', 'v'))
        self._cache.store(context.tokens, k, v)

    def answer(self, context: Context, question: list[int]) -> int:
        """Compute the next logits; return how many tokens of the context were not computed."""
        tokens = context.tokens + question
        found = self._cache.load(tokens, self._planner.k, self._planner.v)
        self._planner.length = found
        self._planner.append(tokens[found:])
        return min(found, len(context.tokens))

    def after(self, context: Context, question: list[int]) -> None:
        """Store the KV of the last answer."""
        self._cache.store(context.tokens + question, self._planner.k, self._planner.v)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_device(parser)
    parser.add_argument('--planner', default='attention_small', choices=PLANNERS)
    parser.add_argument('--quick', action='store_true', help='short contexts, few visits')


def run(args: argparse.Namespace) -> dict:
    """Measure, print the tables, and return all figures."""
    torch.set_num_threads(1)
    plan = PLANS['quick' if args.quick else 'full']
    planner = AttentionPlanner(served(PLANNERS[args.planner], args.device), device=args.device)
    engine = Engine(FullPolicy.random(TINY, device=args.device), EngineConfig(device=args.device))
    stores = Stores(engine, AttentionPart(planner), args.device)
    rows, times = measure(planner, stores, plan)
    if not args.json:
        report.show(
            'capsule.prefix_cache: reused tokens, and mean time to the first token, 95% intervals',
            rows,
            f'{args.planner}, {planner.config.dtype}; of_memory: contexts over those that fit; '
            f'shared: common first tokens of {plan.context + PAST}; CPU time of one thread.',
        )
        report.show('capsule.prefix_cache: ms of whole hits and of whole misses', times)
    return dict(planner=args.planner, quick=args.quick, question=QUESTION, rows=rows, times=times)


def measure(
    planner: AttentionPlanner, stores: Stores, plan: Plan
) -> tuple[list[dict], list[dict]]:
    """Return a row per working set, access and way, and a row of times per way."""
    rows: list[dict] = []
    visits = defaultdict(list)
    for shared in plan.shared:
        contexts = list(_contexts(planner, stores, plan, shared))
        room = plan.kept * held_bytes(max(context.capsule.bytes for context in contexts))
        ways = {
            'pinned': partial(Capsules, planner, stores, room, pins=True),
            'lru': partial(Capsules, planner, stores, room, pins=False),
            'blocks': partial(Blocks, planner, room),
        }
        for size, access in product(plan.sets, ACCESS):
            about = dict(shared=shared, of_memory=size / plan.kept, access=access)
            draws = [
                _draw(planner, stores.device, ways, contexts[:size], access, plan.visits, draw)
                for draw in range(plan.draws)
            ]
            for way in ways:
                own = [draw[way] for draw in draws]
                rows.append(about | dict(way=way) | _row(own) | dict(mb=room / MB))
                visits[way] += chain(*own)
    whole = 1 - TOKENS / (plan.context + PAST)  # the last block of a context is not full
    return rows, [dict(way=way) | _times(own, whole) for way, own in visits.items()]


def _times(visits: Sequence[tuple[float, float]], whole: float) -> dict[str, float]:
    """Return percentiles of whole hits, at least a share of `whole`, and of whole misses."""
    hits = [seconds for share, seconds in visits if share >= whole]
    misses = [seconds for share, seconds in visits if not share]
    return dict(hits=len(hits), misses=len(misses)) | tail('hit', hits) | tail('miss', misses)


def visited(access: str, contexts: int, visits: int, draw: int) -> list[int]:
    """Return the context of each visit. Zipf: the popularity of rank r is 1 / r."""
    random = np.random.default_rng([draw, contexts])
    if access == 'cyclic':
        return [visit % contexts for visit in range(visits)]
    weights = 1 / (1 + random.permutation(contexts)) if access == 'zipf' else np.ones(contexts)
    return random.choice(contexts, size=visits, p=weights / weights.sum()).tolist()


def _draw(
    planner: AttentionPlanner,
    device: str,
    ways: dict[str, Callable[[], Capsules | Blocks]],
    contexts: Sequence[Context],
    access: str,
    visits: int,
    draw: int,
) -> dict[str, list[tuple[float, float]]]:
    """Return, by way, the reused share of the context and the seconds of each visit."""
    opened = {name: make() for name, make in ways.items()}
    for context in contexts:
        for way in opened.values():
            way.keep(context)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number, chosen in enumerate(visited(access, len(contexts), visits, draw)):
        context = contexts[chosen]
        question = prompt(planner.vocab_size, QUESTION, seed=10_000 + draw * visits + number)
        logits = []
        for name in clock.order(opened, number):
            found[name].append(_visit(planner, opened[name], context, question, device))
            logits.append(planner.logits.clone())
            opened[name].after(context, question)
        for other in logits[1:]:
            apart = ((other - logits[0]).norm() / logits[0].norm()).item()
            assert apart <= ROUNDING, f'logits differ by {apart:.3f} of their size'
    return found


def _visit(
    planner: AttentionPlanner,
    way: Capsules | Blocks,
    context: Context,
    question: list[int],
    device: str,
) -> tuple[float, float]:
    """Return the reused share of the context, and the seconds to the first token."""
    reused = 0

    def answer() -> None:
        nonlocal reused
        reused = way.answer(context, question)
        planner.logits.argmax().item()

    seconds = report.once(answer, device, clock.timer(device))
    return reused / len(context.tokens), seconds


def _row(draws: Sequence[Sequence[tuple[float, float]]]) -> dict:
    """Return the means over all draws with the intervals over draws, from (share, seconds)."""
    shares, times = (
        [statistics.fmean(visit[i] for visit in draw) * scale for draw in draws]
        for i, scale in ((0, 100), (1, 1e3))
    )
    reused, ms = interval(shares), interval(times)
    return dict(
        reused_pct=statistics.fmean(shares),
        low_pct=reused[0],
        high_pct=reused[1],
        ms=statistics.fmean(times),
        low_ms=ms[0],
        high_ms=ms[1],
    )


def _contexts(
    planner: AttentionPlanner, stores: Stores, plan: Plan, shared: int
) -> Iterator[Context]:
    maker, common = stores.open(), prompt(planner.vocab_size, shared, seed=99)
    for number in range(max(plan.sets)):
        own = prompt(planner.vocab_size, plan.context + PAST - shared, seed=100 + number)
        planner.prefill(common + own)
        capsule, _ = maker.snapshot(f'context-{shared}-{number}')
        yield Context(common + own, capsule)


main = command('capsule.prefix_cache', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
