"""What is fixed before any result, from a YAML file that has every number; see `settings.yaml`.

Knows fields. Does not know what they are for: their reasons stand in the file.
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
    """The household and its updates, as `TraceConfig`; updates before and between questions."""

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
    """Which segments' KV is computed together. encoder: of meaning, as `memory.encoder` has it."""

    block: int
    stable_steps: int
    similarity: float
    cache_mib: int
    encoder: str


@dataclass(frozen=True)
class ReuseNumbers:
    """How much is computed again, and by what. schedule: KEEP's; CacheBlend's is even."""

    share: float
    schedule: str
    hops: int
    restart: float

    def recompute_ratio(self, layers: int) -> float:
        """Mean over the layers of CacheBlend's share: all in the first, `share` in the others."""
        return (1 + self.share * (layers - 1)) / layers


@dataclass(frozen=True)
class Side:
    """A planner's part: how much it is asked, with how much in view, and how a segment looks."""

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
    """What is varied; timed: questions of the large planner."""

    retrieved: int
    blocks: tuple[int, ...]
    restart: float
    recompute_ratios: tuple[float, ...]
    households: int
    questions: int
    timed: int


@dataclass(frozen=True)
class TimelineNumbers:
    """costs: by name, microseconds of `compute` and `load` per token and layer."""

    retrieved: int
    repeats: int
    costs: dict[str, dict[str, float]]


@dataclass(frozen=True)
class ChurnNumbers:
    """What is varied, without idle time.

    updates: between plans. loads, measured_loads: of a token in a layer, in parts of computing
    it. questions, warm: of each number of updates. width: of the planner whose plans are counted.
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
    """All of it."""

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
    """quick: with what the file's `quick` replaces.

    Raises ValueError that names what is missing or unknown.
    """
    data = yaml.safe_load(path.read_text())
    if not isinstance(data, dict):
        raise ValueError(f'{path} has no settings')
    shorter = data.pop('quick', {})
    return _build(Settings, _replaced(data, shorter, 'quick') if quick else data, 'settings')


def _replaced(data: Mapping, new: Mapping, where: str) -> dict:
    """data with the values of new instead of its own."""
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
