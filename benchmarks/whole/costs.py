"""Unit costs, and the virtual clock that they drive.

Every unit of work of the device has a cost (s) in `costs.yaml`, so that two runs are equal and the
load of the machine has no effect. `calibrate` measures the table. Knows kinds and sizes of work.
Does not know who requests it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from embodied_kv.engine.engine import Engine
from embodied_kv.engine.time_budget import LatencyEstimator
from embodied_kv.planning.plan import Plan

PATH = Path(__file__).with_name('costs.yaml')
MIB = 2**20
WHOLE, COMPRESSED = 'whole', 'compressed'  # of engines without and with compression
Sizes = Mapping[int, float]  # s by size, ascending


@dataclass(frozen=True)
class PolicyCosts:
    """Costs of the engine (s), by size of the batch.

    prefill: of frames, without and with scores for compression. euler_step: of chunks. begin: of
    a stream. choice: of the tokens of a compressed copy, and the copy. decode: a step of streams
    that read whole rows, and of streams that read copies.
    """

    prefill: Mapping[str, Sizes]
    euler_step: Sizes
    begin: float
    choice: float
    decode: Mapping[str, Sizes]

    def decode_step(self, slots: int, copies: float) -> float:
        """Return the cost of a step. copies: share of its streams that read copies."""
        whole, compressed = (at(self.decode[name], slots) for name in (WHOLE, COMPRESSED))
        return whole + copies * (compressed - whole)

    def chunk(self, robots: int, steps: int) -> float:
        """Return the cost of a batch of chunks."""
        return at(self.prefill[WHOLE], robots) + steps * at(self.euler_step, robots)


@dataclass(frozen=True)
class PlannerCosts:
    """Costs of a planner (s).

    layer_token: a token that a layer computes. loaded_token: a token that a layer loads, and its
    part of the choice of what the next layer computes. unit: storing the KV of a unit, in addition
    to its tokens. answer_token: a token of the answer.
    """

    layer_token: float
    loaded_token: float
    unit: float
    answer_token: float

    def steps(self, plan: Plan, fresh: Sequence[int], answer: int, block: int) -> Iterator[float]:
        """Yield the costs of a plan's steps in order.

        fresh: tokens of each unit whose KV it computed and stored first. answer: tokens of its
        answer. block: maximum number of tokens of a layer that a step computes or loads.
        """
        layers = len(plan.computed)
        for tokens in fresh:
            yield from [size * self.layer_token for size in _blocks(tokens, block)] * layers
            yield self.unit
        for computed, loaded in zip(plan.computed, plan.loaded, strict=True):
            yield from (size * self.layer_token for size in _blocks(computed, block))
            yield from (size * self.loaded_token for size in _blocks(loaded, block))
        yield from [self.answer_token] * answer


def _blocks(tokens: int, block: int) -> list[int]:
    return [min(block, tokens - begin) for begin in range(0, tokens, block)]


@dataclass(frozen=True)
class Costs:
    """All unit costs of a run. snapshot, restore: s per MiB of a capsule on the disk."""

    policy: PolicyCosts
    planner: PlannerCosts
    snapshot: float
    restore: float


def at(sizes: Sizes, size: float) -> float:
    """Return the cost at a size, interpolated; above the largest size in proportion."""
    largest = max(sizes)
    cost = float(np.interp(size, list(sizes), list(sizes.values())))
    return cost * max(1.0, size / largest)


def load_costs(policy: str, planner: str, path: Path = PATH) -> Costs:
    """Return the costs of a policy and a planner by name. Raises ValueError without them."""
    data = yaml.safe_load(path.read_text())
    try:
        own = PolicyCosts(**data['policies'][policy]), PlannerCosts(**data['planners'][planner])
    except KeyError as error:
        raise ValueError(
            f'{path.name} must have the unit costs of policy {policy} and planner {planner} (got '
            f'no {error}); run with --measure-costs'
        ) from error
    return Costs(*own, **data['capsules'])


@dataclass
class Meter:
    """The clock of work: the sum of all charges (s)."""

    seconds: float = field(default=0.0)

    def __call__(self) -> float:
        return self.seconds

    def charge(self, seconds: float) -> None:
        """Add the cost of a unit of work."""
        self.seconds += seconds


class TableCosts(LatencyEstimator):
    """Latencies of an engine by the table: what the engine reports is charged to the meter."""

    def __init__(self, costs: PolicyCosts, meter: Meter, engine: Engine) -> None:
        super().__init__()
        self._costs, self._meter, self._engine = costs, meter, engine
        self._chooses, self._copies, self._last = False, 0.0, 0.0

    def begin(self) -> None:
        """Note what the next unit of language work reads, before it runs."""
        streams, is_alone = self._engine.next_batch()
        self._chooses = is_alone and not streams[0].is_new
        self._copies = sum(s.lease.is_copy for s in streams) / max(1, len(streams))

    def observe(self, kind: str, seconds: float, size: int = 1) -> None:
        cost = self._cost(kind, size)
        if cost is None:  # the unit that was charged last is also observed as another kind
            cost = self._last
        else:
            times = self._engine.config.euler_steps if kind == 'denoise_step' else 1
            self._meter.charge(times * cost)
        self._last = cost
        super().observe(kind, cost, size)

    def note(self, kind: str, seconds: float) -> None:
        """Record the charge of a unit of another kind, such as a step of a plan."""
        super().observe(kind, seconds)

    def _cost(self, kind: str, size: int) -> float | None:
        costs = self._costs
        match kind:
            case 'prefill':
                scored = self._engine.compression.decide().scores_frame
                return at(costs.prefill[COMPRESSED if scored else WHOLE], size)
            case 'denoise_step':
                return at(costs.euler_step, size)
            case 'begin':
                return costs.choice if self._chooses else costs.begin
            case 'decode':
                return costs.decode_step(size, self._copies)
        return None
