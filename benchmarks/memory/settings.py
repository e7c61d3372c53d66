"""The settings fixed before any result, from a YAML file with every number: `settings.yaml`.

Knows fields. Does not know their purpose: the file gives the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

PATH = Path(__file__).with_name('settings.yaml')


@dataclass(frozen=True)
class World:
    """The household and its updates, as in `TraceConfig`; updates before and between questions."""

    facts: int
    before: int
    between: int
    changed: float
    objects: int
    places: int
    cold: float
    carry: float


@dataclass(frozen=True)
class Construction:
    """Which segments' KV is computed jointly. encoder: of meaning, a name of `memory.encoder`."""

    block: int
    stable_steps: int
    similarity: float
    cache_mib: int
    encoder: str


@dataclass(frozen=True)
class ReuseNumbers:
    """How much is recomputed, and by which method. schedule: KEEP's; CacheBlend's is even."""

    share: float
    schedule: str
    hops: int
    restart: float

    def recompute_ratio(self, layers: int) -> float:
        """Return the mean of CacheBlend's share over the layers: 1 in the first, else `share`."""
        return (1 + self.share * (layers - 1)) / layers


@dataclass(frozen=True)
class Side:
    """How a planner is used: number of questions, tokens in view, and the size of a segment."""

    households: int
    questions: int
    warm: int
    tokens: int
    answer_tokens: int
    segment_tokens: int
    epic_tokens: int


@dataclass(frozen=True)
class Large:
    """The planner that is timed: dimensions, and the seed of its random weights."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Ablations:
    """The varied settings of the ablations; timed: number of questions of the large planner."""

    retrieved: int
    blocks: tuple[int, ...]
    restart: float
    recompute_ratios: tuple[float, ...]
    households: int
    questions: int
    timed: int


@dataclass(frozen=True)
class TimelineNumbers:
    """Settings of the timeline. costs: by name, µs of `compute` and `load` per token and layer."""

    retrieved: int
    repeats: int
    costs: dict[str, dict[str, float]]


@dataclass(frozen=True)
class ChurnNumbers:
    """The varied settings of churn, without idle time.

    updates: between plans. loads, measured_loads: time to load a token in a layer, as a fraction
    of computing it. questions, warm: for each number of updates. width: of the planner whose plans
    are counted.
    """

    retrieved: int
    updates: tuple[int, ...]
    loads: tuple[float, ...]
    questions: int
    warm: int
    width: int
    schedule: str
    restart: float
    measured_updates: tuple[int, ...]
    measured_loads: tuple[float, ...]


@dataclass(frozen=True)
class Settings:
    """All settings."""

    seed: int
    retrieved: tuple[int, ...]
    world: World
    construction: Construction
    reuse: ReuseNumbers
    accuracy: Side
    speed: Side
    planner: Large
    ablations: Ablations
    timeline: TimelineNumbers
    churn: ChurnNumbers


def load_settings(path: Path = PATH, quick: bool = False) -> Settings:
    """Return the settings; quick: with the values of the file's section `quick`.

    Raises ValueError that names what is missing or unknown.
    """
    data = yaml.safe_load(path.read_text())
    if not isinstance(data, dict):
        raise ValueError(f'{path} has no settings')
    shorter = data.pop('quick', {})
    return _build(Settings, _replaced(data, shorter, 'quick') if quick else data, 'settings')


def _replaced(data: Mapping, new: Mapping, where: str) -> dict:
    """Return data with the values of `new` in place of its own."""
    if unknown := new.keys() - data.keys():
        raise ValueError(f'{where} replaces {", ".join(sorted(unknown))}: there is no such')
    return {
        name: _replaced(value, new[name], f'{where}.{name}')
        if isinstance(value, dict) and name in new
        else new.get(name, value)
        for name, value in data.items()
    }


def _build(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f'{where} is {data!r}, not fields')
    names = {field.name for field in fields(kind)}
    for what, odd in (('lacks', names - data.keys()), ('has unknown', data.keys() - names)):
        if odd:
            raise ValueError(f'{where} {what} {", ".join(sorted(odd))}')
    types, made = get_type_hints(kind), {}
    for name, value in data.items():
        if is_dataclass(types[name]):
            value = _build(types[name], value, f'{where}.{name}')
        made[name] = tuple(value) if isinstance(value, list) else value
    return kind(**made)
