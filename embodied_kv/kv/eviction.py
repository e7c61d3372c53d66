"""The order in which KV is evicted, read from a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from embodied_kv.kv.pool import Evictable, Offers, Pool
from embodied_kv.text import reason

PATH = Path(__file__).with_name('eviction.yaml')
MIB = 2**20
CONSUMERS = 'action', 'language'
POOLS = (
    *('prefixes', 'copies', 'streams', 'memory rows', 'planner row', 'host cache'),
    'capsules',
)


@dataclass(frozen=True)
class EvictionOrder:
    """The fields of `eviction.yaml`, which documents them.

    The cost by byte is that of GreedyDual-Size (Cao and Irani 1997); its decay with the time
    without use is the ranking of hyperbolic caching (Blankstein et al. 2017). Raises ValueError,
    with the remedy, for an invalid order.
    """

    never: tuple[str, ...] = ()
    half_after_seconds: float = 0.0
    assumed_seconds_per_mib: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_number('half_after_seconds', self.half_after_seconds)
        for pool, seconds in self.assumed_seconds_per_mib.items():
            _check_number(f'assumed_seconds_per_mib of {pool}', seconds)

    @classmethod
    def read(cls, path: str | Path = '') -> EvictionOrder:
        """Return the order of a file; '': the packaged one. Raises ValueError with the remedy."""
        path = Path(path or PATH).expanduser()
        try:
            return cls._of(yaml.safe_load(path.read_text()))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ValueError(
                f'{path} states no order of eviction ({reason(error)}); correct it as in {PATH}, '
                "or leave engine.kv_eviction_file ''"
            ) from error

    @classmethod
    def _of(cls, data: object) -> EvictionOrder:
        names = {f.name for f in fields(cls)}
        if not isinstance(data, dict) or data.keys() != names:
            raise ValueError(f'fields must be {", ".join(sorted(names))}')
        never, assumed = data['never'], data['assumed_seconds_per_mib']
        if not isinstance(never, list) or not all(one in CONSUMERS for one in never):
            raise ValueError(f'never must be a list of consumers, of {", ".join(CONSUMERS)}')
        if not isinstance(assumed, dict) or not all(pool in POOLS for pool in assumed):
            raise ValueError(
                f'assumed_seconds_per_mib must be seconds by pool, of {", ".join(POOLS)}'
            )
        return cls(**data | dict(never=tuple(never)))

    def worth(self, pool: str, size: int, cost: float, idle: float = 0.0) -> float:
        """Return the worth (s per byte) of keeping KV. cost: s; 0: unknown. idle: s since use."""
        return float(self.worths(pool, [size], [cost], idle)[0])

    def worths(
        self, pool: str, sizes: ArrayLike, costs: ArrayLike, idles: ArrayLike = 0.0
    ) -> NDArray[np.float64]:
        """Return `worth` of several things, float64 [n]; infinite if there is nothing to free."""
        sizes, costs = np.asarray(sizes), np.asarray(costs, np.float64)
        assumed = self.assumed_seconds_per_mib.get(pool, 0.0) / MIB
        some = np.maximum(sizes, 1)
        known = np.where(sizes > 0, np.where(costs != 0, costs / some, assumed), math.inf)
        half = self.half_after_seconds
        return known / (1 + np.asarray(idles) / half) if half else known

    def ranked(self, pool: Pool) -> Iterator[tuple[float, Pool, Evictable]]:
        """Yield worth, pool and offer of each permitted eviction of a pool, lowest worth first.

        Offers are made on access. Offers of equal worth keep the order of the pool.
        """
        offers = Offers.of(pool.evictable())
        worths = self.worths(pool.name, offers.sizes, offers.costs, offers.idles)
        for i in ascending(worths):
            offer = offers[i]
            if offer.size and not set(offer.consumers) & set(self.never):
                yield float(worths[i]), pool, offer


def ascending(values: NDArray[np.float64]) -> Iterator[int]:
    """Yield indices by ascending value, equal ones in order; the first few need no full sort."""
    rest, count = np.arange(len(values)), 16
    while len(rest):
        left = values[rest]
        bound = np.partition(left, count)[count] if count < len(rest) else math.inf
        chosen, rest = rest[left <= bound], rest[left > bound]
        yield from chosen[np.argsort(values[chosen], kind='stable')].tolist()
        count *= 8


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f'{name} must be >= 0 s and finite (got {value!r})')
