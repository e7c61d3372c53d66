"""How often a policy does what it is told, and says what is true, in scenes it never saw.

`python -m embodied_kv.train.evaluate`: closed loop through the serving engine in simulated time.
The robot goes on moving while a chunk is made, for as long as that takes here for one robot
(rounded up to the next set-point, so that two runs agree). Noise, scenes and questions depend on
the episode alone: the ways of serving are compared on the same. Prints tables, and with --json the
same as one line, last.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from embodied_kv.compress.limits import check_alpha
from embodied_kv.compress.registry import method
from embodied_kv.config import TABLETOP, EngineConfig
from embodied_kv.fleet import horizon
from embodied_kv.model.checkpoint import read_config
from embodied_kv.model.policy import Policy, bundled
from embodied_kv.sim.rollout import SET_POINT
from embodied_kv.sim.scene import CAMERAS
from embodied_kv.sim.tabletop import JOINTS
from embodied_kv.sim.tasks import FAMILIES
from embodied_kv.train import evaluate_report as report
from embodied_kv.train.evaluate_actors import MODES, Compressed, Expert, Served
from embodied_kv.train.worlds import (
    CONTROLS,
    SCENES_PER_SEED,
    Actor,
    Case,
    Outcome,
    Setting,
    World,
    run,
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument('--checkpoint', help="file or folder, or 'random'; else the bundled one")
    made.add_argument('--episodes', type=int, default=100, help='per family and seed')
    made.add_argument('--seeds', type=int, default=3, help='how many sets of scenes')
    made.add_argument('--families', nargs='+', choices=FAMILIES, default=list(FAMILIES))
    made.add_argument('--mode', choices=(*MODES, 'silent', 'all'), default='batched')
    made.add_argument('--control', choices=CONTROLS, default='none')
    made.add_argument('--expert', action='store_true', help='the expert first, as a bound')
    made.add_argument('--robots', type=int, default=20, help='worlds of one engine, in lockstep')
    made.add_argument('--every', type=int, default=1, help='control periods between two chunks')
    made.add_argument(
        '--horizon', help='instead: static:H, or confidence:T:H_MIN, of the policy; then the next'
    )
    made.add_argument('--latency-ms', type=float, help='instead of the measured one')
    made.add_argument(
        '--steps-per-frame', type=int, default=6, help='decode steps per frame, when batched'
    )
    made.add_argument('--max-tokens', type=int, default=48, help='of an answer')
    made.add_argument(
        '--action-alpha', type=float, default=1.0, help='share of a prefix that actions read'
    )
    made.add_argument(
        '--language-alpha', type=float, default=1.0, help='share of a prefix that words read'
    )
    made.add_argument('--compress', default=EngineConfig.compress, help='method')
    made.add_argument(
        '--compress-by', choices=('stream', 'row', 'text'), default=EngineConfig.compress_by
    )
    made.add_argument('--threads', type=int, default=1, help='of torch')
    made.add_argument('--json', action='store_true', help='print a JSON line, last')
    return made


def load(checkpoint: str | None) -> Policy:
    """The policy to evaluate. Raises ValueError where it cannot be, or not on the tabletop."""
    if checkpoint == 'random':
        return Policy.random(TABLETOP)
    path = checkpoint or bundled(TABLETOP.name)
    config = read_config(path)
    if (config.views, config.action_dim) != (CAMERAS, len(JOINTS)):
        raise ValueError(
            f'{path} is no policy of the tabletop: it sees {", ".join(config.views)} and moves '
            f'{config.action_dim} joints, here are {", ".join(CAMERAS)} and {len(JOINTS)}'
        )
    return Policy.load(path, config)


def check(args: argparse.Namespace, dt: float) -> None:
    """Raises ValueError for a number out of range, or no method. dt: s of a control period."""
    counts = ('episodes', 'seeds', 'robots', 'every', 'steps_per_frame', 'max_tokens', 'threads')
    for name in counts:
        if getattr(args, name) < 1:
            raise ValueError(f'--{name.replace("_", "-")} is at least 1')
    if args.episodes > SCENES_PER_SEED:
        raise ValueError(f'--episodes is at most {SCENES_PER_SEED}')
    if args.latency_ms is not None and not 0 <= args.latency_ms <= dt * 1e3:
        raise ValueError(f'--latency-ms is 0 to {dt * 1e3:.0f}, the control period')
    for alpha in (args.action_alpha, args.language_alpha):
        check_alpha(alpha)
    method(args.compress)
    if args.horizon is not None:
        horizon.parse(args.horizon)


def compressed(args: argparse.Namespace) -> Compressed:
    """What the arguments say about compression."""
    return Compressed(**{field: getattr(args, field) for field in vars(Compressed())})


class Evaluation:
    """The same cases, in the same worlds, for every actor. Close it, or use it in a `with`.

    measured: ms from one robot's observation to its chunk, None where the latency is given.
    seconds: that each actor took.
    """

    def __init__(self, args: argparse.Namespace, policy: Policy) -> None:
        self.args, self.policy = args, policy
        self.cases = [
            Case(family, seed, episode)
            for seed in range(args.seeds)
            for episode in range(args.episodes)
            for family in args.families
        ]
        self.seconds: dict[str, float] = {}
        self.measured = None if args.latency_ms is not None else self._measure()
        latency = args.latency_ms if self.measured is None else self._effective(self.measured)
        dt = policy.config.action_dt
        self.setting = Setting(dt, latency / 1e3, args.every, args.control)
        self._stack = ExitStack()
        self._worlds = [
            self._stack.enter_context(self._world(self.setting))
            for _ in range(min(args.robots, len(self.cases)))
        ]

    def __enter__(self) -> Evaluation:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self) -> dict:
        """What the arguments ask for, as figures."""
        model, figures, expert = self.policy.config, {}, None
        if self.args.expert:
            bound = self._act('expert', Expert(model.horizon))
            expert = {outcome.case: outcome for outcome in bound}
            figures['expert'] = report.action_rows(bound)
        outcomes: dict[str, list[Outcome]] = {}
        figures['modes'] = {}
        for mode in MODES if self.args.mode == 'all' else (self.args.mode,):
            actor = self._served(mode, len(self._worlds))
            outcomes[mode] = self._act(mode, actor)
            figures['modes'][mode] = dict(
                actions=report.action_rows(outcomes[mode], expert),
                text=report.text_rows(actor.answers, actor.subtasks),
            )
        return figures | dict(pairs=report.pair_rows(outcomes))

    def _act(self, name: str, actor: Actor) -> list[Outcome]:
        """Every case by one actor; a bar on stderr meanwhile."""
        columns = TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn()
        with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task(name, total=len(self.cases))
            began = time.perf_counter()
            outcomes = run(self._worlds, self.cases, actor, lambda outcome: bar.advance(task))
            self.seconds[name] = time.perf_counter() - began
        return outcomes

    def _measure(self) -> float:
        """The median of one robot alone, ms."""
        with self._world(Setting(self.policy.config.action_dt, latency=0.0)) as world:
            world.begin(self.cases[0])
            return self._served('silent', robots=1).latency(world.look()) * 1e3

    def _effective(self, latency: float) -> float:
        """A chunk takes effect at the next set-point of the arm, a period later at most; ms."""
        step = SET_POINT * 1e3
        return min(self.policy.config.action_dt * 1e3, math.ceil(latency / step) * step)

    def _world(self, setting: Setting) -> closing[World]:
        return closing(World(self.policy.config.vision.image_size, setting))

    def _served(self, mode: str, robots: int) -> Served:
        args = self.args
        how = args.steps_per_frame, args.max_tokens, compressed(args)
        execute = None if args.horizon is None else horizon.parse(args.horizon)
        return Served(self.policy, mode, robots, *how, execute)


def show(figures: dict, note: str) -> None:
    """The figures as tables."""
    if 'expert' in figures:
        report.show_actions('expert', figures['expert'], note)
    for mode, rows in figures['modes'].items():
        report.show_actions(f'policy, {mode}', rows['actions'], note)
        if rows['text']:
            report.show_text(f'what it said, {mode}', rows['text'])
    if figures['pairs']:
        report.show('the same episodes, served in two ways', figures['pairs'])


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluate as the command line says."""
    command = parser()
    args = command.parse_args(arguments)
    torch.set_num_threads(max(1, args.threads))
    try:
        policy = load(args.checkpoint)
        check(args, policy.config.action_dt)
    except (ValueError, OSError) as error:
        command.exit(2, f'evaluate: {error}\n')
    with Evaluation(args, policy) as evaluation:
        figures, latency = evaluation.run(), evaluation.setting.latency * 1e3
    measured = evaluation.measured
    origin = 'given' if measured is None else f'{measured:.1f} ms measured'
    show(
        figures,
        f'control: {args.control}; latency: {latency:.0f} ms ({origin}); wrong object: the same '
        'was done to another; seconds and path: medians of successes',
    )
    if args.json:
        settings = vars(args) | dict(
            checkpoint=args.checkpoint or 'bundled',
            latency_ms=round(latency, 3),
            first_scene=evaluation.cases[0].scene_seed,
        )
        timings = dict(latency_ms=measured, seconds=evaluation.seconds)
        print(json.dumps(dict(evaluate=settings, **figures, timings=timings)))


if __name__ == '__main__':
    main()
