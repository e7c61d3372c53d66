"""The ways of reuse by name, with their numbers from a PlanningConfig.

Knows names. Does not know prompts or layers' work.
"""

from __future__ import annotations

from collections.abc import Callable

from embodied_kv.memory.keep import Keep
from embodied_kv.memory.reuse import CacheBlend, Epic, FullRecompute, PrefixCaching, Reuse
from embodied_kv.memory.schedule import named_schedule
from embodied_kv.planning.config import PlanningConfig


def _keep(config: PlanningConfig, layers: int) -> Reuse:
    schedule = named_schedule(config.recompute_schedule, layers, config.recompute_ratio)
    numbers = config.hops, config.restart, config.scoring_tokens, config.propagation
    return Keep(schedule, *numbers)


def _cacheblend(config: PlanningConfig, layers: int) -> Reuse:
    schedule = named_schedule(config.recompute_schedule, layers, config.recompute_ratio)
    return CacheBlend(schedule, config.granularity == 'segment')


METHODS: dict[str, Callable[[PlanningConfig, int], Reuse]] = {
    'keep': _keep,
    'full': lambda config, layers: FullRecompute(),
    'prefix': lambda config, layers: PrefixCaching(),
    'full_reuse': lambda config, layers: Reuse(),
    'cacheblend': _cacheblend,
    'epic': lambda config, layers: Epic(config.epic_tokens),
}

# They compute a part of a segment again, or compare all of its tokens with the stored ones.
NEED_WHOLE_UNITS = ('cacheblend', 'epic')


def reuse_method(name: str, config: PlanningConfig, layers: int) -> Reuse:
    """A new one, for a planner of so many layers.

    Raises ValueError that lists the names, or for a recompute ratio that so few layers do not
    reach.
    """
    if name not in METHODS:
        raise ValueError(f'no method {name!r}; there are: {", ".join(METHODS)}')
    return METHODS[name](config, layers)
