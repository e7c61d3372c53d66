"""An evaluation: the same cases, in the same worlds, for every actor; and its command line.

This module knows arguments, worlds and actors, not tables.
"""

from __future__ import annotations

import argparse
import math
import time
from contextlib import ExitStack, closing

from embodied_kv.compress.budget import check_keep_ratio
from embodied_kv.compress.registry import method
from embodied_kv.config import TABLETOP
from embodied_kv.control import execution_horizon
from embodied_kv.control.rtc import SCHEDULES
from embodied_kv.demo.sim.rollout import SET_POINT
from embodied_kv.demo.sim.scene import CAMERAS
from embodied_kv.demo.sim.tabletop import JOINTS
from embodied_kv.demo.sim.tasks import EVERY_FAMILY, FAMILIES, MEMORY_FAMILIES
from embodied_kv.engine.guidance import MODES as MODES_OF_RTC
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import bundled
from embodied_kv.model.policy import Policy
from embodied_kv.progress import Progress
from training.evaluate import report
from training.evaluate.actors import MODES, PASTS, Chunking, Compressed, Expert, Served
from training.evaluate.cases import (
    CONTROLS,
    LONGEST,
    SCENES_PER_SEED,
    Actor,
    Case,
    Outcome,
    Setting,
)
from training.evaluate.worlds import World, run


def parser(text: str = '') -> argparse.ArgumentParser:
    """Return the parser of the command line. text: of its help."""
    made = argparse.ArgumentParser(
        prog='python -m training.evaluate',
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument('--checkpoint', help="file or folder, or 'random'; else the bundled one")
    made.add_argument('--episodes', type=int, default=100, help='per family and seed')
    made.add_argument('--seeds', type=int, default=3, help='how many sets of scenes')
    made.add_argument('--families', nargs='+', choices=EVERY_FAMILY, default=list(FAMILIES))
    made.add_argument('--mode', choices=(*MODES, 'silent', 'all'), default='batched')
    made.add_argument('--control', choices=CONTROLS, default='none')
    made.add_argument('--expert', action='store_true', help='the expert first, as a bound')
    made.add_argument('--robots', type=int, default=20, help='worlds of one engine, in lockstep')
    made.add_argument('--every', type=int, default=1, help='control periods between two chunks')
    made.add_argument(
        '--execution-horizon', help='instead: static:H, or confidence:T:H_MIN; then the next'
    )
    made.add_argument('--latency-ms', type=float, help='instead of the measured one')
    made.add_argument(
        '--latency-spread', type=float, default=0.0, help='share by which it varies; with spikes'
    )
    made.add_argument('--crowded', action='store_true', help='two places, and things put away')
    made.add_argument('--euler-steps', type=int, default=Chunking.euler_steps, help='of a chunk')
    made.add_argument(
        '--candidates',
        type=int,
        default=Chunking.candidates,
        help='chunks of a frame; the most typical one is executed',
    )
    made.add_argument(
        '--memory-rows', type=int, default=0, help='earlier frames that are read; 0: none'
    )
    made.add_argument(
        '--memory-kept-rows', type=int, default=0, help='earlier frames that are kept; 0: as read'
    )
    made.add_argument(
        '--tasks-between', type=int, default=0, help='more earlier tasks, after what is asked for'
    )
    made.add_argument(
        '--memory-keep-ratio', type=float, default=1.0, help='share of a prefix that they keep'
    )
    made.add_argument(
        '--past',
        choices=PASTS,
        default=PASTS[0],
        help='engine of the earlier frames: the same, a killed one whose capsule is restored, or '
        'one whose memory is lost',
    )
    made.add_argument('--rtc', choices=tuple(MODES_OF_RTC), default=Chunking.rtc)
    made.add_argument('--rtc-schedule', choices=SCHEDULES, default=Chunking.schedule)
    made.add_argument(
        '--rtc-horizon', type=int, default=Chunking.horizon, help='actions that are guided'
    )
    made.add_argument('--rtc-max-guidance', type=float, default=Chunking.rtc_max_guidance)
    made.add_argument(
        '--steps-per-frame', type=int, default=6, help='decode steps per frame, when batched'
    )
    made.add_argument('--max-tokens', type=int, default=48, help='of an answer')
    made.add_argument(
        '--action-keep-ratio', type=float, default=1.0, help='share of a prefix that actions read'
    )
    made.add_argument(
        '--language-keep-ratio', type=float, default=1.0, help='share of a prefix that words read'
    )
    made.add_argument(
        '--compression-method', default=EngineConfig.compression_method, help='method'
    )
    made.add_argument(
        '--compression-queries',
        choices=('stream', 'row', 'text'),
        default=EngineConfig.compression_queries,
    )
    made.add_argument('--threads', type=int, default=1, help='of torch')
    made.add_argument('--json', action='store_true', help='print a JSON line, last')
    return made


def load(checkpoint: str | None) -> Policy:
    """Load the policy. Raises ValueError if it cannot be read, or is not for the tabletop."""
    if checkpoint == 'random':
        return Policy.random(TABLETOP)
    path = checkpoint or bundled(TABLETOP.name)
    found = open_checkpoint(path)
    config = found.config
    if (config.views, config.action_dim) != (CAMERAS, len(JOINTS)):
        raise ValueError(
            f'{path} is no policy of the tabletop: it sees {", ".join(config.views)} and moves '
            f'{config.action_dim} joints, here are {", ".join(CAMERAS)} and {len(JOINTS)}'
        )
    return found.load()


def check(args: argparse.Namespace, dt: float) -> None:
    """Raise ValueError for a number out of range, or an unknown method.

    dt: s of a control period.
    """
    counts = ('episodes', 'seeds', 'robots', 'every', 'steps_per_frame', 'max_tokens', 'threads')
    counts = *counts, 'euler_steps', 'candidates'
    for name in counts:
        if getattr(args, name) < 1:
            raise ValueError(f'--{name.replace("_", "-")} is at least 1')
    if args.episodes > SCENES_PER_SEED:
        raise ValueError(f'--episodes is at most {SCENES_PER_SEED}')
    most = (LONGEST - 1) * dt * 1e3
    if args.latency_ms is not None and not 0 <= args.latency_ms <= most:
        raise ValueError(f'--latency-ms is 0 to {most:.0f}: a chunk would be over when it comes')
    if not 0 <= args.latency_spread < 1:
        raise ValueError('--latency-spread is from 0 to 1')
    if not 0 <= args.rtc_horizon <= LONGEST:
        raise ValueError(f'--rtc-horizon is 0 to {LONGEST}, the chunk size')
    if args.tasks_between < 0:
        raise ValueError('--tasks-between is at least 0')
    if args.control == 'wrong_colour' and {*args.families} & {*MEMORY_FAMILIES}:
        raise ValueError(f'--control wrong_colour is not for {", ".join(MEMORY_FAMILIES)}')
    for keep_ratio in (
        args.action_keep_ratio,
        args.language_keep_ratio,
        args.memory_keep_ratio,
    ):
        check_keep_ratio(keep_ratio)
    method(args.compression_method)
    if args.execution_horizon is not None:
        execution_horizon.parse(args.execution_horizon)


def chunking(args: argparse.Namespace) -> Chunking:
    """Return how a chunk is made, by the arguments."""
    guidance = args.rtc_max_guidance, args.rtc_schedule, args.rtc_horizon
    return Chunking(args.euler_steps, args.rtc, *guidance, args.candidates)


def compressed(args: argparse.Namespace) -> Compressed:
    """Return the compression, by the arguments."""
    return Compressed(**{field: getattr(args, field) for field in vars(Compressed())})


class Evaluation:
    """Runs the same cases in the same worlds for every actor. Close it, or use it in a `with`.

    measured: ms from one robot's observation to its chunk, None if the latency is given. seconds:
    duration of each actor's run.
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
        more = args.every, args.control, args.latency_spread, args.crowded, args.tasks_between
        self.setting = Setting(dt, latency / 1e3, *more)
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
        """Run what the arguments ask for and return its figures."""
        model, figures, expert = self.policy.config, {}, None
        if self.args.expert:
            bound = self.act('expert', Expert(model.chunk_size))
            expert = {outcome.case: outcome for outcome in bound}
            figures['expert'] = report.action_rows(bound)
        outcomes: dict[str, list[Outcome]] = {}
        figures['modes'] = {}
        for mode in MODES if self.args.mode == 'all' else (self.args.mode,):
            actor = self.served(mode, len(self._worlds))
            outcomes[mode] = self.act(mode, actor)
            figures['modes'][mode] = dict(
                actions=report.action_rows(outcomes[mode], expert),
                text=report.text_rows(actor.answers, actor.subtasks),
            )
        return figures | dict(pairs=report.pair_rows(outcomes))

    def act(self, name: str, actor: Actor) -> list[Outcome]:
        """Run every case with one actor, with its progress on stderr."""
        with Progress(f'{name}, episodes', len(self.cases)) as progress:
            began = time.perf_counter()
            outcomes = run(self._worlds, self.cases, actor, lambda outcome: progress.advance())
            self.seconds[name] = time.perf_counter() - began
        return outcomes

    def _measure(self) -> float:
        """Return the median latency of one robot alone, ms."""
        with self._world(Setting(self.policy.config.action_dt, latency=0.0)) as world:
            world.begin(self.cases[0])
            return self.served('silent', robots=1).latency(world.look()) * 1e3

    def _effective(self, latency: float) -> float:
        """Return the latency (ms) up to the next set-point, when a chunk takes effect."""
        step = SET_POINT * 1e3
        return math.ceil(latency / step) * step

    def _world(self, setting: Setting) -> closing[World]:
        return closing(World(self.policy.config.vision.image_size, setting))

    def served(self, mode: str, robots: int, **changes: object) -> Served:
        """Return the policy as the arguments want it. changes: of arguments."""
        args = argparse.Namespace(**vars(self.args) | changes)
        how = args.steps_per_frame, args.max_tokens, compressed(args)
        text = args.execution_horizon
        horizon_policy = None if text is None else execution_horizon.parse(text)
        memory = args.memory_rows, args.memory_keep_ratio, args.past, args.memory_kept_rows
        return Served(self.policy, mode, robots, *how, horizon_policy, chunking(args), *memory)
