"""The order in which KV is given up, as a policy file states it.

Knows costs, bytes and time without use. Does not know what a pool holds, nor how much has to go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml

from embodied_kv.kv.pool import Evictable, Pool
from embodied_kv.text import reason

PATH = Path(__file__).with_name('eviction.yaml')
MIB = 2**20
CONSUMERS = 'action', 'language'
POOLS = 'prefixes', 'copies', 'streams', 'planner row', 'host cache', 'capsules'


@dataclass(frozen=True)
class EvictionOrder:
    """The fields of `eviction.yaml`, which says what each is for.

    The cost by byte is that of GreedyDual-Size (Cao and Irani 1997); that it fades with the time
    without use is the ranking of hyperbolic caching (Blankstein et al. 2017). Raises ValueError,
    with what to write, for what is no such order.
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
        """Of a file; '': the packaged one. Raises ValueError, which says what to write."""
        path = Path(path or PATH).expanduser()
        try:
            return cls._of(yaml.safe_load(path.read_text()))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ValueError(
                f'{path} states no order of eviction ({reason(error)}): mend it as in {PATH}, or '
                "leave engine.kv_policy ''"
            ) from error

    @classmethod
    def _of(cls, data: object) -> EvictionOrder:
        names = {f.name for f in fields(cls)}
        if not isinstance(data, dict) or data.keys() != names:
            raise ValueError(f'write {", ".join(sorted(names))}, and nothing else')
        never, assumed = data['never'], data['assumed_seconds_per_mib']
        if not isinstance(never, list) or not all(one in CONSUMERS for one in never):
            raise ValueError(f'never is a list of consumers, of {", ".join(CONSUMERS)}')
        if not isinstance(assumed, dict) or not all(pool in POOLS for pool in assumed):
            raise ValueError(f'assumed_seconds_per_mib is seconds by pool, of {", ".join(POOLS)}')
        return cls(**data | dict(never=tuple(never)))

    def worth(self, pool: str, size: int, cost: float, idle: float = 0.0) -> float:
        """Seconds a byte that it is worth to keep. cost: s; 0: not known. idle: s without use."""
        if not size:
            return math.inf
        known = cost / size if cost else self.assumed_seconds_per_mib.get(pool, 0.0) / MIB
        return known / (1 + idle / self.half_after_seconds) if self.half_after_seconds else known

    def sorted(
        self, offers: Iterable[tuple[Pool, Evictable]]
    ) -> list[tuple[float, Pool, Evictable]]:
        """What may go, each with its worth before it; what is worth least first."""
        made = (
            (self.worth(pool.name, offer.size, offer.cost, offer.idle), pool, offer)
            for pool, offer in offers
            if offer.size and not set(offer.consumers) & set(self.never)
        )
        return sorted(made, key=lambda ranked: ranked[0])


def _check_number(name: str, value: object) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value < math.inf:
        raise ValueError(f'{name} is {value!r}: write seconds, 0 or more')
