"""Time to the planner's first token: a cold prefill compared with a restore and an append.

Knows prompts, boundaries and stores. Does not know the policy, tables or files. A prompt is a
shared prefix and a question. The boundary between them lies `PAST` tokens after a whole block, so
an append folds these tokens again before the question ("Exact append" in
`benchmarks.hybrid.planner`).

There are two cold prefills. `cold` runs in the blocks of the planner, as a capsule must for an
exact append. `full` runs in calls of `FULL_BLOCK` tokens, which is the fastest cold path here, so
that the gain of the capsule is separate from the cost of small calls. Source: Execution-State
Capsules, section 7.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.capsule.figures import MB, Stores, assert_same, copies, tail, tensor_bytes
from benchmarks.common.clock import timer
from benchmarks.common.ratio import ratio
from benchmarks.common.report import once
from embodied_kv.capsule.capsule import Capsule
from embodied_kv.capsule.tiers import NoRoomError, Tier, TierCapacities
from embodied_kv.kv.transfer import held_bytes
from embodied_kv.session.robot_session import RobotSession

if TYPE_CHECKING:  # not every version of transformers can run it
    from benchmarks.hybrid.planner import HybridPlanner

PAST, QUESTION = 23, 16  # tokens: of the prefix after its last whole block; of the question
FULL_BLOCK = 512  # tokens of one call of the fastest cold prefill
ROUNDING = 0.05  # largest difference of its logits over their size
FEWEST_VISITS = 8  # of a working set


def prefix(
    planner: HybridPlanner,
    stores: Stores,
    length: int,
    repeats: int,
    copied: int,
    gflops: float,
) -> dict[str, object]:
    """Measure one prefix of `length` + PAST tokens: all ways in turn, and the copies.

    Times are CPU times of the process with one thread on a CPU, else wall times. speedup: of the
    restored way over `full`, the median of the rounds' own ratios with its 95% interval.
    speedup_blocks: over `cold`. floor_ms: of the matrix products of a prefill at `gflops`.

    Raises AssertionError if a byte of the state after the append differs from that of a cold
    prefill in the same blocks.
    """
    device, capsules = stores.device, stores.open()
    own = timer(device)
    whole = type(planner)(replace(planner.config, block=FULL_BLOCK), planner.model)
    tokens = prompt(planner.config.vocab_size, length + PAST + QUESTION, seed=length)
    before, question = tokens[:-QUESTION], tokens[-QUESTION:]
    whole.prefill(before)
    planner.prefill(before)  # warms up the cold ways, too
    moved = copies(capsules, copied, device)
    capsule, _ = capsules.snapshot('prefix')
    times = defaultdict(list)
    for _ in range(repeats):
        times['full'].append(once(lambda: first_token(whole, whole.prefill, tokens), device, own))
        times['cold'].append(
            once(lambda: first_token(planner, planner.prefill, tokens), device, own)
        )
        cold = {name: tensor.clone() for name, tensor in planner.state().items()}
        times['restore'].append(once(lambda: capsules.rollback('prefix'), device, own))
        times['append'].append(
            once(lambda: first_token(planner, planner.append, question), device, own)
        )
        assert_same(planner.state(), cold)
        apart = ((whole.logits - planner.logits).norm() / planner.logits.norm()).item()
        assert apart <= ROUNDING, f'logits of the cold ways differ by {apart:.3f} of their size'
    restored = [sum(pair) for pair in zip(times['restore'], times['append'], strict=True)]
    return dict(
        length=length,
        repeats=repeats,
        capsule_mb=tensor_bytes(capsule) / MB,
        **tail('cold', times['cold']),
        **tail('full', times['full']),
        **tail('restored', restored),
        append_ms=statistics.median(times['append']) * 1e3,
        speedup=(over_full := ratio(times['full'], restored))['ratio'],
        low=over_full['low'],
        high=over_full['high'],
        speedup_blocks=ratio(times['cold'], restored)['ratio'],
        floor_ms=_operations(planner, len(tokens)) / gflops / 1e6,
        copies=moved,
    )


def _operations(planner: HybridPlanner, tokens: int) -> int:
    """Return the minimum FLOP of a prefill: all matrices of the layers, without attention."""
    layers = planner.model.model.layers.parameters()
    return 2 * tokens * sum(weight.numel() for weight in layers if weight.dim() == 2)


def first_token(
    planner: HybridPlanner, fold: Callable[[Sequence[int]], None], tokens: Sequence[int]
) -> int:
    """Return the token after `tokens`; `fold` is the planner's prefill or append."""
    fold(tokens)
    return int(planner.logits.argmax())


def prompt(vocab: int, length: int, seed: int) -> list[int]:
    """Return random tokens below `vocab`, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (length,), generator=generator).tolist()


# ---------------------------------------------------------------------- working sets


@dataclass(frozen=True, eq=False)
class Context:
    """A prefix and its capsule. logits: after the question, float32 [vocab]."""

    tokens: list[int]
    capsule: Capsule
    logits: Tensor


@dataclass(frozen=True)
class Store:
    """Whole contexts in host memory.

    pins: the first contexts stay; otherwise the least recently used one is evicted.
    """

    capsules: RobotSession
    pins: bool

    def holds(self, capsule: Capsule) -> bool:
        """Return whether the store has the capsule."""
        return capsule.name in self.capsules.registry

    def keep(self, capsule: Capsule) -> None:
        """Store the capsule, pinned if `pins`, unless capacity or policy refuse it."""
        registry = self.capsules.registry
        try:
            registry.add(capsule, Tier.HOST)
        except NoRoomError:
            return
        if self.pins:
            registry.pin(capsule.name)


def working_sets(
    planner: HybridPlanner,
    stores: Stores,
    length: int,
    sizes: Sequence[int],
    kept: int,
    rounds: int,
) -> list[dict[str, float]]:
    """Measure contexts of `length` + PAST tokens in a cycle, in three stores at each visit.

    pinned: all contexts. pinned_bounded: the first contexts that fit into the bytes of `kept`
    contexts. lru: the same bytes; the least recently used context is evicted. A miss is a cold
    prefill; storing its context is not timed. The times are mean ms to the first token of
    revisits.
    """
    question = prompt(planner.config.vocab_size, QUESTION, seed=1)
    maker = stores.open()
    made = [_context(planner, maker, length, question, n) for n in range(max(sizes))]
    room = kept * held_bytes(max(context.capsule.bytes for context in made))
    kinds = {
        'pinned': (TierCapacities(device=0), True),
        'pinned_bounded': (TierCapacities(device=0, host=room, policy='refuse'), True),
        'lru': (TierCapacities(device=0, host=room, policy='drop'), False),
    }
    rows = []
    for size in sizes:
        opened = {name: Store(stores.open(b), pins) for name, (b, pins) in kinds.items()}
        for store in opened.values():
            for context in made[:size]:
                store.keep(context.capsule)
        times, hits = defaultdict(list), defaultdict(list)
        visits = max(rounds * size, FEWEST_VISITS)
        for visit in range(visits):
            for name, store in opened.items():
                context = made[visit % size]
                seconds, hit = _visit(planner, store, context, question, stores.device)
                times[name].append(seconds)
                hits[name].append(hit)
        row = dict(contexts=size, visits=visits)
        for name, store in opened.items():
            row[f'{name}_ms'] = statistics.mean(times[name]) * 1e3
            row[f'{name}_max_ms'] = max(times[name]) * 1e3
            row[f'{name}_hit_pct'] = 100 * statistics.mean(hits[name])
            row[f'{name}_mb'] = store.capsules.registry.used(Tier.HOST) / MB
        rows.append(row)
    return rows


def _context(
    planner: HybridPlanner, maker: RobotSession, length: int, question: list[int], number: int
) -> Context:
    tokens = prompt(planner.config.vocab_size, length + PAST, seed=100 + number)
    planner.prefill(tokens)
    capsule, _ = maker.snapshot(f'context-{number}')
    planner.append(question)
    return Context(tokens, capsule, planner.logits.clone())


def _visit(
    planner: HybridPlanner, store: Store, context: Context, question: list[int], device: str
) -> tuple[float, bool]:
    """Return the seconds to the first token, and whether it was a hit; a miss is stored."""
    hit = store.holds(context.capsule)

    def answer() -> None:
        if hit:
            store.capsules.rollback(context.capsule.name)
            first_token(planner, planner.append, question)
        else:
            first_token(planner, planner.prefill, context.tokens + question)

    seconds = once(answer, device)
    assert torch.equal(planner.logits, context.logits), 'a revisit has other logits'
    if not hit:
        store.keep(context.capsule)
    return seconds, hit
