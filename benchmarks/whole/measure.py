"""Runs all groups in all ways.

Knows ways, groups and the file of results. Prints the result of each group on stderr.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.common import clock
from benchmarks.common.command import BenchmarkError
from benchmarks.mission.cases import scene
from benchmarks.whole import figures
from benchmarks.whole.costs import Costs
from benchmarks.whole.group import Group
from benchmarks.whole.settings import Settings
from benchmarks.whole.ways import WAYS
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.model.planner_checkpoint import LoadedPlanner
from embodied_kv.model.policy import Policy


class Results:
    """The results of groups, one a line of a file, so that a later run continues an earlier one.

    path: None to keep them in memory only. conditions: first line of the file; all that decides a
    result. Raises BenchmarkError if the file has other conditions.
    """

    def __init__(self, path: Path | None, conditions: dict) -> None:
        self._path, self.runs = path, list[dict]()
        if path is None:
            return
        if path.exists():
            before, *lines = map(json.loads, path.read_text().splitlines())
            if before != json.loads(json.dumps(conditions)):
                raise BenchmarkError(
                    f'{path} must have results of the present settings and costs (got others); '
                    'name another file'
                )
            self.runs = lines
        else:
            path.write_text(json.dumps(conditions) + '\n')

    def __contains__(self, run: tuple[str, int]) -> bool:
        return run in {(done['way'], done['group']) for done in self.runs}

    def add(self, run: dict) -> dict:
        """Append the result of a group in a way, and return it as it is read back."""
        text = json.dumps(run)
        if self._path is not None:
            with self._path.open('a') as file:
                file.write(text + '\n')
        self.runs.append(json.loads(text))
        return self.runs[-1]


def conditions(settings: Settings, costs: Costs) -> dict:
    """Return everything that decides a result, except for the missions that are run."""
    return dict(settings=asdict(settings) | dict(missions=None), costs=asdict(costs))


def measure(
    ways: Sequence[str],
    settings: Settings,
    policy: Policy,
    planner: LoadedPlanner,
    costs: Costs,
    results: Results,
    quiet: bool,
) -> list[dict]:
    """Return a dict for every group in every way; ways alternate, group by group."""
    groups = settings.missions // settings.robots
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as open_:
        size = policy.config.vision.image_size
        tables = [open_.enter_context(Tabletop(scene(size))) for _ in range(settings.robots)]
        bar = open_.enter_context(Progress(*columns, console=Console(stderr=True), disable=quiet))
        task = bar.add_task('groups', total=groups * len(ways))
        given = settings, tables, policy, planner, costs
        for group in range(groups):
            with tempfile.TemporaryDirectory() as prepared:
                for way in clock.order(ways, group):
                    bar.update(task, description=f'group {group}, {way}')
                    if (way, group) not in results:
                        with tempfile.TemporaryDirectory() as folder:
                            folders = Path(prepared), Path(folder)
                            run = Group(group, WAYS[way], *given, *folders).run()
                        run = results.add(dict(way=way, group=group) | run)
                        bar.console.print(figures.line(run), soft_wrap=True, highlight=False)
                    bar.advance(task)
    return [run for run in results.runs if run['group'] < groups and run['way'] in ways]
