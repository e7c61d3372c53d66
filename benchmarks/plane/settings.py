"""What is fixed before any result, from a YAML file that has every number; see `settings.yaml`.

Knows fields. Does not know what they are for: their reasons stand in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

PATH = Path(__file__).with_name('settings.yaml')
MIB = 2**20


@dataclass(frozen=True)
class Costs:
    """s; of a frame, of a token, of a MiB of a unit, of a MiB of a capsule."""

    prefill: float
    token: float
    load_mib: float
    capsule_mib: float


@dataclass(frozen=True)
class Sizes:
    """Of arenas, and ranges of what is drawn."""

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
    """Questions a second; tokens of an answer, and how many come with a frame."""

    own: float
    others: float
    tokens: tuple[int, int]
    per_frame: int


@dataclass(frozen=True)
class PlanRate:
    """Plans a second; units in view, of a phase's working set, of all that are known."""

    own: float
    others: float
    units: int
    working_set: int
    known: int


@dataclass(frozen=True)
class BranchRate:
    """Snapshots a second; restores to one, of so many recent capsules, of those that are kept."""

    own: float
    others: float
    restores: float
    recent: int
    kept: int


@dataclass(frozen=True)
class Settings:
    """All of it."""

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
        """Bytes."""
        return self.budget_mib * MIB


def load_settings(quick: bool = False) -> Settings:
    """quick: with what the file's `quick` replaces."""
    data = yaml.safe_load(PATH.read_text())
    shorter = data.pop('quick')
    data |= shorter if quick else {}
    parts = dict(costs=Costs, sizes=Sizes, talk=Talk, plan=PlanRate, branch=BranchRate)
    made = {name: parts[name](**_tuples(data[name])) for name in parts}
    return Settings(**_tuples(data) | made)


def _tuples(data: dict) -> dict:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
