"""Whether the updates of denoising predict which actions a later chunk revises.

The confidence rule stops a chunk where an action's final update is large relative to its earlier
ones, and a threshold that follows the load would move along the same scale. Both can only help if
the scale separates actions that hold from actions that do not. Here the robot makes a chunk in
every control period; the revision of action i of a chunk is its distance to the first action of
the chunk i periods later. That is compared with the updates:

- ratio: the final update over the mean of the earlier ones, which the rule uses
- final: the final update alone; total: all of them

Spearman's rank correlation, over all actions and among those of one position (mean over
positions): an action further in is revised more, whatever its updates are. The position itself is
a score, too, as a baseline without updates. 95% intervals: percentiles of resampled episodes.
`confidence_signal` is the measure by which the action node validates a horizon by confidence.

The revision of an action shows how well the policy agrees with itself a little later, not whether
the task succeeds: what is found holds for this proxy.

Physics: 0 is chance; a useful scale orders the actions of one position.

Source: Kairos, section 3.1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np
import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.common import report
from benchmarks.common.command import command
from embodied_kv.control.confidence_signal import ConfidenceSignal
from embodied_kv.control.execution_horizon import Confidence, with_execution_horizon
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.model.policy import Policy
from embodied_kv.types import ActionChunk
from training.evaluate import evaluation
from training.evaluate.actors import Served
from training.evaluate.cases import Case, Choice, Frame, Setting
from training.evaluate.worlds import World, run

SEED = 5  # of scenes; evaluation and its benchmarks use 0 to 4
SCORES = ('ratio', 'final', 'total', 'position')
RESAMPLES = 200
RULE = Confidence(0.2, 3)

Made = dict[Case, list[tuple[np.ndarray, np.ndarray]]]  # by episode: values, updates of each chunk


class Recording(Served):
    """A policy that keeps its chunks: of each case in order, values [chunk, 7] and updates."""

    def __init__(self, policy: Policy, robots: int) -> None:
        super().__init__(policy, 'silent', robots, 1, 1)
        self.made: Made = {}

    def act(self, frames: Sequence[Frame]) -> list[Choice]:
        _, chunks = self._prefill_and_denoise(frames)
        for frame, chunk in zip(frames, chunks, strict=True):
            kept = np.array(chunk.values), np.array(chunk.updates)
            self.made.setdefault(frame.case, []).append(kept)
        return [Choice(chunk.values, 1) for chunk in chunks]


def record(policy: Policy, episodes: int, robots: int, quiet: bool) -> Made:
    """Return the chunks of every period of `episodes` episodes of each family."""
    cases = [Case(family, SEED, scene) for scene in range(episodes) for family in FAMILIES]
    actor, setting = Recording(policy, robots), Setting(policy.config.action_dt, 0.0)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), disable=quiet))
        task = bar.add_task('episodes', total=len(cases))
        worlds = [
            stack.enter_context(closing(World(policy.config.vision.image_size, setting)))
            for _ in range(min(robots, len(cases)))
        ]
        run(worlds, cases, actor, lambda outcome: bar.advance(task))
    return actor.made


def actions(chunks: Sequence[tuple[np.ndarray, np.ndarray]], scale: np.ndarray) -> np.ndarray:
    """Return, of one episode, the revision of each action, then SCORES: float64 [n, 1 + scores].

    scale [7]: the unit of each dimension. Actions of position 0 are left out: no later chunk has
    them.
    """
    rows = []
    for start, (values, updates) in enumerate(chunks):
        final, earlier = updates[-1], updates[:-1].mean(0)
        for i in range(1, min(len(values), len(chunks) - start)):
            back = np.linalg.norm((values[i] - chunks[start + i][0][0]) / scale)
            rows.append([back, final[i] / earlier[i], final[i], updates[:, i].sum(), i])
    return np.array(rows, np.float64).reshape(-1, 1 + len(SCORES))


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's correlation, of average ranks for ties; 0 if one does not vary."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def within(table: np.ndarray, column: int) -> float:
    """Return the correlation among actions of one position, mean over positions."""
    places = table[:, 1 + SCORES.index('position')]
    found = [table[places == place] for place in np.unique(places)]
    return float(np.mean([correlation(part[:, 0], part[:, column]) for part in found]))


def signal(episodes: Sequence[np.ndarray]) -> list[dict]:
    """Return a row per score: the correlation over all actions and within a position.

    Each has a 95% interval.
    """
    rng, count = np.random.default_rng(0), len(episodes)
    draws = [rng.integers(count, size=count) for _ in range(RESAMPLES)]
    tables = [np.concatenate([episodes[i] for i in drawn]) for drawn in draws]
    whole, rows = np.concatenate(episodes), []
    for column, score in enumerate(SCORES, 1):
        row = dict(score=score)
        for name, measured in (
            ('overall', lambda t, c: correlation(t[:, 0], t[:, c])),
            ('within', within),
        ):
            low, high = np.percentile([measured(table, column) for table in tables], (2.5, 97.5))
            row |= {name: measured(whole, column), f'{name}_low': low, f'{name}_high': high}
        rows.append({k: v if isinstance(v, str) else float(v) for k, v in row.items()})
    return rows


def agreement(made: Made, dt: float) -> ConfidenceSignal:
    """Return what the action node measures to validate a horizon by confidence. dt: s."""
    found = ConfidenceSignal()
    for chunks in made.values():
        found.restart()
        for number, (values, updates) in enumerate(chunks):
            chunk = ActionChunk(values, dt, 0, 0.0, number, len(updates), 0.0, 0.0, updates)
            found.see(with_execution_horizon(chunk, RULE), number * dt)
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--episodes', type=int, default=4, help='of each family')
    parser.add_argument('--quick', action='store_true', help='2 episodes of each')
    parser.add_argument('--checkpoint', help="file or folder, or 'random'; else the bundled one")
    parser.add_argument('--robots', type=int, default=16, help='worlds of one engine, in lockstep')


def measured(args: argparse.Namespace) -> dict:
    """Record, compare, print the table, and return all figures."""
    torch.set_num_threads(1)
    policy = evaluation.load(args.checkpoint)
    made = record(policy, 2 if args.quick else args.episodes, args.robots, args.json)
    scale = np.concatenate([values for chunks in made.values() for values, _ in chunks]).std(0)
    scale = np.where(scale > 0, scale, 1.0)
    episodes = [actions(chunks, scale) for chunks in made.values()]
    ratios = np.concatenate([episode[:, 1] for episode in episodes])
    spread = [float(x) for x in np.percentile(ratios, (5, 50, 95))]
    rows, found = signal(episodes), agreement(made, policy.config.action_dt)
    if not args.json:
        note = f'ratio, 5 to 95% of the actions: {spread[0]:.2f} to {spread[2]:.2f}'
        note += f'\nconfidence signal of the action node: {found}'
        report.show('updates: rank correlation with how far an action is taken back', rows, note)
    return dict(
        checkpoint=args.checkpoint or 'bundled',
        episodes=len(episodes),
        actions=len(ratios),
        ratio=spread,
        rows=rows,
        confidence_signal=dict(
            zip(('share', 'low', 'high'), found.estimate(), strict=True), pairs=found.pairs
        ),
    )


main = command('updates', __doc__, add_arguments, measured)

if __name__ == '__main__':
    main()
