"""How far to execute a chunk: success by execution horizon, static H against confidence.

The tabletop policy in the worlds of evaluation. Scenes, tasks, noise and latency are the same for
every setting: the noise of a chunk depends on the episode and the control period alone. A robot
gets a frame when the H actions of its chunk are over, and goes on moving while the next is made.
The plot is that of the paper's Figure 11: out/bench/horizon.png.

Physics: a chunk is made for the world as it was observed, so success can only fall with H where
the world, or the arm, does not behave as predicted; and the number of chunks to compute falls with
1/H. A threshold helps where the updates of denoising predict which chunks go wrong, and at which
action.

Source: Kairos, sections 3.1 and 5.2.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from statistics import fmean, median

import numpy as np
import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.common.pictures import plt, save
from embodied_kv.control import execution_horizon
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.model.policy import Policy
from training.evaluate import evaluation
from training.evaluate.actors import Served
from training.evaluate.cases import Case, Outcome, Setting
from training.evaluate.report import Z95, rate
from training.evaluate.worlds import World, run

LATENCY = 0.04  # s from a frame to its chunk; fixed, so that speed does not change a result
STATIC = (1, 2, 3, 4, 5, 6, 8, 10)
MINIMUM = min(STATIC)  # of the paper: the smallest static horizon of the range
# Chosen by the spread of H in four episodes of other scenes, from about 1 to the whole chunk, not
# by success. Each denoising step of this policy moves an action about equally far.
THRESHOLDS = (-0.05, 0.0, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.2, 0.4)
QUICK = ('static:1', 'static:5', 'static:10', 'confidence:0:1', 'confidence:0.05:1')

Outcomes = dict[str, list[Outcome]]  # by setting, of the same cases in the same order


def settings(quick: bool) -> list[str]:
    """Return the policies of the execution horizon, as texts."""
    if quick:
        return list(QUICK)
    static = [str(execution_horizon.Static(actions)) for actions in STATIC]
    return static + [str(execution_horizon.Confidence(t, MINIMUM)) for t in THRESHOLDS]


def measure(
    policy: Policy,
    texts: Sequence[str],
    episodes: int,
    robots: int,
    on_end: Callable[[], None] = lambda: None,
) -> Outcomes:
    """Run every case under every setting. episodes: scenes, each with every family."""
    cases = [Case(family, 0, scene) for scene in range(episodes) for family in FAMILIES]
    robots = min(robots, len(cases))
    setting = Setting(policy.config.action_dt, LATENCY)
    with ExitStack() as stack:
        worlds = [
            stack.enter_context(closing(World(policy.config.vision.image_size, setting)))
            for _ in range(robots)
        ]
        return {
            text: run(
                worlds,
                cases,
                Served(
                    policy, 'silent', robots, 1, 1, horizon_policy=execution_horizon.parse(text)
                ),
                lambda outcome: on_end(),
            )
            for text in texts
        }


def summary(text: str, outcomes: Sequence[Outcome]) -> dict:
    """Return a setting's figures.

    horizon: mean execution horizon; rounds: mean chunks of an episode.
    """
    horizons = [actions for outcome in outcomes for actions in outcome.execution_horizons]
    done = [outcome for outcome in outcomes if outcome.success]
    by_family = Counter(outcome.case.family for outcome in done)
    return dict(
        setting=text,
        horizon=fmean(horizons),
        success=rate(len(done), len(outcomes)),
        by_family={family: by_family[family] for family in FAMILIES},
        rounds=len(horizons) / len(outcomes),
        seconds=median(outcome.seconds for outcome in done) if done else None,
        outcomes=''.join('s' if o.success else 'w' if o.wrong else '.' for o in outcomes),
    )


def compare(rows: Sequence[dict]) -> list[dict]:
    """Compare each threshold with static horizons of the same average, a row each.

    static: the rate on the line between the two nearest static horizons. difference, low, high: of
    the success, over the same episodes; 95% interval with scenes as the independent units. longer:
    its horizon over that of the longest static one that succeeds at least as often; None where
    none does.
    """
    static = sorted((r for r in rows if _is_static(r)), key=lambda r: r['horizon'])
    line = np.array([_successes(row) for row in static])  # [static, episodes]
    at = [row['horizon'] for row in static]
    compared = []
    for row in rows:
        if _is_static(row):
            continue
        expected = np.array([np.interp(row['horizon'], at, each) for each in line.T])
        scenes = (_successes(row) - expected).reshape(-1, len(FAMILIES)).mean(1)
        difference = float(scenes.mean())
        error = Z95 * float(scenes.std(ddof=1)) / len(scenes) ** 0.5 if len(scenes) > 1 else 1.0
        as_often = [r['horizon'] for r in static if r['success']['k'] >= row['success']['k']]
        compared.append(
            dict(
                setting=row['setting'],
                horizon=row['horizon'],
                rate=row['success']['rate'],
                static=float(expected.mean()),
                difference=difference,
                low=difference - error,
                high=difference + error,
                longer=row['horizon'] / max(as_often) if as_often else None,
            )
        )
    return compared


def verdict(compared: Sequence[dict]) -> dict:
    """Count the thresholds above, below and within the uncertainty of the static line."""
    above = sum(row['low'] > 0 for row in compared)
    below = sum(row['high'] < 0 for row in compared)
    return dict(above=above, below=below, level=len(compared) - above - below)


def _is_static(row: dict) -> bool:
    return row['setting'].startswith('static')


def _successes(row: dict) -> np.ndarray:
    """Return float64 [episodes], 0 or 1."""
    return np.array([outcome == 's' for outcome in row['outcomes']], np.float64)


def show(rows: Sequence[dict], compared: Sequence[dict]) -> None:
    """Print two tables."""
    shown = [
        dict(
            setting=row['setting'],
            horizon=row['horizon'],
            n=row['success']['n'],
            success=f'{100 * row["success"]["rate"]:.1f}%',
            interval=f'{100 * row["success"]["low"]:.1f} to {100 * row["success"]["high"]:.1f}',
            **row['by_family'],
            rounds=row['rounds'],
            seconds=row['seconds'],
        )
        for row in rows
    ]
    note = 'horizon: mean H of all rounds; rounds: per episode; seconds: median of successes'
    report.show('horizon: success by setting', shown, note)
    report.show('horizon: thresholds against static horizons of the same average', compared)


def plot(rows: Sequence[dict]) -> None:
    """Plot success over the average horizon; bars: 95% of each point alone."""
    figure, axis = plt.subplots(figsize=(6.4, 4.2), layout='constrained')
    for static, label, color in (
        (True, 'static horizon', 'tab:gray'),
        (False, 'confidence threshold', 'tab:orange'),
    ):
        some = sorted((r for r in rows if _is_static(r) == static), key=lambda r: r['horizon'])
        x = [row['horizon'] for row in some]
        y, low, high = (
            100 * np.array([row['success'][name] for row in some])
            for name in ('rate', 'low', 'high')
        )
        axis.errorbar(x, y, [y - low, high - y], label=label, color=color, marker='o', capsize=2)
    axis.set(xlabel='average execution horizon, actions', ylabel='episodes that succeed, %')
    axis.legend(frameon=False, loc='lower left')
    save(figure, 'horizon')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--episodes', type=int, default=75, help='of each family')
    parser.add_argument('--quick', action='store_true', help='few settings, 2 episodes of each')
    parser.add_argument('--checkpoint', help="file or folder, or 'random'; else the bundled one")
    parser.add_argument('--robots', type=int, default=20, help='worlds of one engine, in lockstep')


def measured(args: argparse.Namespace) -> dict:
    """Measure, plot, print the tables, and return all figures."""
    torch.set_num_threads(1)
    texts, episodes = settings(args.quick), 2 if args.quick else args.episodes
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=args.json) as bar:
        task = bar.add_task('episodes', total=len(texts) * len(FAMILIES) * episodes)
        policy = evaluation.load(args.checkpoint)
        outcomes = measure(policy, texts, episodes, args.robots, lambda: bar.advance(task))
    rows = [summary(text, some) for text, some in outcomes.items()]
    compared = compare(rows)
    plot(rows)
    if not args.json:
        show(rows, compared)
    return dict(
        checkpoint=args.checkpoint or 'bundled',
        latency_s=LATENCY,
        rows=rows,
        compared=compared,
        verdict=verdict(compared),
    )


main = command('horizon', __doc__, add_arguments, measured)

if __name__ == '__main__':
    main()
