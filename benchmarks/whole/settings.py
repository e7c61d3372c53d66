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
    """All settings. kairos, fifo: names of a scheduler and of an execution horizon.

    policy: name of its unit costs, and of a test bed if that is not the bundled one. planner: name
    of its unit costs. rules: whether the plans of the rules are executed. kill_every: s between
    two kills, 0: one kill. narration_tokens: least and most tokens of a narration, which then does
    not end with the policy's sentence; None: it does. segments: minimum number of facts in a
    robot's memory.
    """

    policy: str
    planner: str
    rules: bool
    robots: int
    missions: int
    first: int
    stagger: float
    mission_seconds: float
    step_seconds: float
    ask_every: float
    kill: tuple[float, float]
    kill_every: float
    batch: int
    rows: int
    streams: int
    decode_tokens: int
    decode_batch_multiple: int
    kv_budget_mib: int
    euler_steps: int
    deadline_margin_ms: float
    prompt_interval_frames: int
    streams_per_prompt: int
    narration_tokens: tuple[int, int] | None
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
    segments: int
    context_tokens: int
    recompute_ratio: float
    answer_tokens: int
    capsule_interval: float

    def numbers(self, group: int) -> range:
        """Return the numbers of the missions that the robots of a group carry out, one each."""
        first = self.first + group * self.robots
        return range(first, first + self.robots)

    def killed_at(self, group: int) -> float:
        """Return the s from the group's beginning to the first kill; the same in every way."""
        return float(np.random.default_rng((self.first, group)).uniform(*self.kill))


def load_settings(quick: bool = False, heavy: bool = False) -> Settings:
    """Return the settings; heavy, quick: with the values of these sections of the file."""
    data = yaml.safe_load(PATH.read_text())
    sections = {name: data.pop(name) for name in ('quick', 'heavy', 'heavy quick')}
    data |= sections['heavy'] if heavy else {}
    data |= sections['heavy quick' if heavy else 'quick'] if quick else {}
    return Settings(**{n: tuple(v) if isinstance(v, list) else v for n, v in data.items()})
