"""Closed loop with actions that read a compressed prefix, in the worlds of evaluation.

Scenes, tasks and noise are the same for every way. Latency is fixed, not measured, so the speed of
a way does not change its result. Actions have no question: the prompt's own text scores the frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.common.paired import paired
from embodied_kv.demo.sim.tasks import BASIC
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from training.evaluate import evaluation
from training.evaluate.report import rate

METHODS, KEEP_RATIOS = (EngineConfig.compression_method, 'random'), (0.05, 0.1, 0.2, 0.4)
LATENCY_MS = 40


def closed_loop(policy: Policy, episodes: int, robots: int = 20) -> list[dict]:
    """Return a row for whole prefixes, then one per method and keep ratio.

    episodes: of each family.
    """
    whole = succeeded(policy, episodes, robots, 'full', 1.0)
    scenes = np.arange(len(whole)) // len(BASIC)  # the families' cases of one scene seed
    rows = [_row('full', 1.0, whole, whole, scenes)]
    for method in METHODS:
        for keep_ratio in KEEP_RATIOS:
            done = succeeded(policy, episodes, robots, method, keep_ratio)
            rows.append(_row(method, keep_ratio, done, whole, scenes))
    return rows


def succeeded(
    policy: Policy, episodes: int, robots: int, method: str, keep_ratio: float
) -> list[bool]:
    """Return whether each episode succeeded, families in turn."""
    options = dict(episodes=episodes, seeds=1, robots=robots, latency_ms=LATENCY_MS, mode='silent')
    options |= dict(
        compression_method=method, compression_queries='row', action_keep_ratio=keep_ratio
    )
    arguments = [w for k, v in options.items() for w in (f'--{k.replace("_", "-")}', str(v))]
    args = evaluation.parser().parse_args([*arguments, '--families', *BASIC])
    with evaluation.Evaluation(args, policy) as episodes_of:
        rows = episodes_of.run()['modes']['silent']['actions']
    return [outcome == 's' for outcome in rows[-1]['outcomes']]


def _row(
    method: str, keep_ratio: float, done: Sequence[bool], whole: Sequence[bool], scenes: np.ndarray
) -> dict:
    share, to_whole = rate(sum(done), len(done)), paired(done, whole, scenes)
    names = ('gained', 'lost', 'difference', 'low', 'high')
    return dict(
        method=method, keep_ratio=keep_ratio, n=share['n'], done=share['k'], rate=share['rate']
    ) | {name: to_whole[name] for name in names}
