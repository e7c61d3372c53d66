"""The settings fixed before any result, from `settings.yaml`, which gives the reasons.

Knows fields. Does not know their purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

PATH = Path(__file__).with_name('settings.yaml')


@dataclass(frozen=True)
class Settings:
    """All settings. kairos, fifo: names of a scheduler and of an execution horizon."""

    robots: int
    missions: int
    first: int
    stagger: float
    mission_seconds: float
    step_seconds: float
    ask_every: float
    kill: tuple[float, float]
    batch: int
    rows: int
    streams: int
    decode_tokens: int
    euler_steps: int
    deadline_margin_ms: float
    prompt_interval_frames: int
    request_ahead: int
    retry_interval: float
    kairos: tuple[str, str]
    fifo: tuple[str, str]
    keep_ratio: float
    compression_after_tokens: int
    compressed_rows: int
    keep: str
    recompute: str
    step_tokens: int
    cache_mib: int
    capsule_interval: float
    chunk_seconds: float
    calibrations: int

    def numbers(self, group: int) -> range:
        """Return the numbers of the missions that the robots of a group carry out, one each."""
        first = self.first + group * self.robots
        return range(first, first + self.robots)

    def killed_at(self, group: int) -> float:
        """Return the s from the group's beginning to the kill; the same in every way."""
        return float(np.random.default_rng((self.first, group)).uniform(*self.kill))


def load_settings(quick: bool = False) -> Settings:
    """Return the settings; quick: with the values of the file's section `quick`."""
    data = yaml.safe_load(PATH.read_text())
    shorter = data.pop('quick')
    data |= shorter if quick else {}
    return Settings(**{n: tuple(v) if isinstance(v, list) else v for n, v in data.items()})
