"""The settings fixed before any result, from a YAML file with every number: `settings.yaml`.

Knows fields. Does not know their purpose: the file gives the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

PATH = Path(__file__).with_name('settings.yaml')
MIB = 2**20


@dataclass(frozen=True)
class Costs:
    """Costs (s): of a frame, of a token, of a MiB of a unit, of a MiB of a capsule."""

    prefill: float
    token: float
    load_mib: float
    capsule_mib: float


@dataclass(frozen=True)
class Sizes:
    """Dimensions of the arenas, and the ranges of the sizes that are drawn."""

    layers: int
    head_dim: int
    prefix_tokens: int
    decode_tokens: int
    rows: int
    streams: int
    unit_kib: tuple[int, int]
    capsule_kib: tuple[int, int]


@dataclass(frozen=True)
class Talk:
    """Questions per second; tokens of an answer; tokens decoded per frame."""

    own: float
    others: float
    tokens: tuple[int, int]
    per_frame: int


@dataclass(frozen=True)
class PlanRate:
    """Plans per second; units in view, of a phase's working set, and of all that are known."""

    own: float
    others: float
    units: int
    working_set: int
    known: int


@dataclass(frozen=True)
class BranchRate:
    """Snapshots per second; restores per snapshot; capsules they choose from; capsules kept."""

    own: float
    others: float
    restores: float
    recent: int
    kept: int


@dataclass(frozen=True)
class Settings:
    """All settings."""

    development: tuple[int, ...]
    seeds: tuple[int, ...]
    budget_mib: int
    parts: int
    seconds: float
    phase_seconds: float
    rate: float
    costs: Costs
    sizes: Sizes
    talk: Talk
    plan: PlanRate
    branch: BranchRate

    @property
    def budget(self) -> int:
        """Return the budget in bytes."""
        return self.budget_mib * MIB


def load_settings(quick: bool = False) -> Settings:
    """Return the settings; quick: with the values of the file's section `quick`."""
    data = yaml.safe_load(PATH.read_text())
    shorter = data.pop('quick')
    data |= shorter if quick else {}
    parts = dict(costs=Costs, sizes=Sizes, talk=Talk, plan=PlanRate, branch=BranchRate)
    made = {name: parts[name](**_tuples(data[name])) for name in parts}
    return Settings(**_tuples(data) | made)


def _tuples(data: dict) -> dict:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
