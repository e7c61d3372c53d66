"""Runs all groups in all ways, and charges their work.

Knows ways, groups and the clock. Prints the result of each group on stderr.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.common import clock
from benchmarks.mission.cases import scene
from benchmarks.whole import figures
from benchmarks.whole.group import Group
from benchmarks.whole.process import engine_config
from benchmarks.whole.settings import Settings
from benchmarks.whole.ways import WAYS, Parts
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.shapes import doubling
from embodied_kv.engine.warmup import blank, warm_up
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.planner_checkpoint import LoadedPlanner
from embodied_kv.model.policy import Policy
from embodied_kv.serving.batch import profile_of, serve


class Charges:
    """The charge of work: CPU time in proportion to the present time of a chunk."""

    def __init__(self, policy: Policy, settings: Settings) -> None:
        self._settings = settings
        config = engine_config(settings, Parts())
        self._engine = Engine(policy, config, policy.config.action_dt)
        self._time = clock.ChargedTime()
        warm_up(self._engine)

    def __call__(self) -> float:
        """Return the s of work so far; only differences are meaningful."""
        return self._time()

    def calibrate(self) -> Profile:
        """Measure again, and return what batches of chunks are charged."""
        seconds, least = {}, 0.0
        for size in doubling(self._settings.batch):
            frames = [replace(blank(self._engine), robot=str(i)) for i in range(size)]
            took = [
                clock.seconds(lambda f=frames: serve(self._engine, f, math.inf), 'cpu')
                for _ in range(self._settings.calibrations)
            ]
            seconds[size] = least = max(least, statistics.median(took))
        charged = self._settings.chunk_seconds
        self._time.calibrate(seconds[1], charged)
        charged = {size: s / seconds[1] * charged for size, s in seconds.items()}
        return profile_of(self._engine.policy.config, charged)


def measure(
    ways: Sequence[str],
    settings: Settings,
    policy: Policy,
    planner: LoadedPlanner,
    rules: bool,
    quiet: bool,
) -> list[dict]:
    """Return a dict for every group in every way; ways alternate, group by group."""
    groups = settings.missions // settings.robots
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    charges, found = Charges(policy, settings), []
    with ExitStack() as open_:
        size = policy.config.vision.image_size
        tables = [open_.enter_context(Tabletop(scene(size))) for _ in range(settings.robots)]
        bar = open_.enter_context(Progress(*columns, console=Console(stderr=True), disable=quiet))
        task = bar.add_task('groups', total=groups * len(ways))
        for group in range(groups):
            for way in clock.order(ways, group):
                bar.update(task, description=f'group {group}, {way}')
                profile = charges.calibrate()
                with tempfile.TemporaryDirectory() as folder:
                    given = settings, tables, policy, planner, profile, charges, rules
                    run = Group(group, WAYS[way], *given, Path(folder)).run()
                found.append(dict(way=way, group=group) | run)
                bar.console.print(figures.line(found[-1]), soft_wrap=True, highlight=False)
                bar.advance(task)
    return found
