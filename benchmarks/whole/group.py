"""Missions that are carried out together, one per robot, with a kill during them.

Knows bodies, processes and minds, and when each begins and ends. Does not know figures.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from unittest.mock import patch

from benchmarks.fleet.serving.schedule import Schedule
from benchmarks.mission.cases import draw_case, is_done
from benchmarks.whole.body import Body
from benchmarks.whole.costs import Costs
from benchmarks.whole.mind import Mind, planning_config, prepare
from benchmarks.whole.process import Process
from benchmarks.whole.settings import Settings
from benchmarks.whole.turns import Turn
from benchmarks.whole.ways import Parts
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.model.planner_checkpoint import LoadedPlanner
from embodied_kv.model.policy import Policy

log = logging.getLogger(__name__)


class Group:
    """One group in one way, from the beginning of its first mission to the end of its last one.

    number: of the group; it decides the missions and the moment of the kill. costs: of units of
    work. prepared: folder of memories as they are before the missions, which all ways share.
    folder: an empty one, which survives the process.
    """

    def __init__(
        self,
        number: int,
        parts: Parts,
        settings: Settings,
        tables: Sequence[Tabletop],
        policy: Policy,
        planner: LoadedPlanner,
        costs: Costs,
        prepared: Path,
        folder: Path,
    ) -> None:
        self._parts, self._settings, self._planner = parts, settings, planner
        self._costs, self._folder = costs, folder
        self._policy, self._schedule = policy, Schedule()
        self._killed_at = settings.killed_at(number)
        self._cases = [
            draw_case(table, n) for table, n in zip(tables, settings.numbers(number), strict=True)
        ]
        self._tables = tables
        self._names = [f'/robot_{i}' for i in range(settings.robots)]
        self._bodies: dict[str, Body] = {}
        self._minds: dict[str, Mind] = {}
        self._processes: list[Process] = []
        config = planning_config(settings, parts)
        for name, case in zip(self._names, self._cases, strict=True):
            memory = prepared / config.reuse_method / name.strip('/')
            if not memory.exists():
                prepare(case, planner, memory, config, settings.segments)
            shutil.copytree(memory, self._of(name) / 'memory')

    def run(self) -> dict:
        """Run the group, and return its results as plain values.

        Raises RuntimeError if a mission does not end.
        """
        schedule, s = self._schedule, self._settings
        self._new_process()
        for i in range(s.robots):
            schedule.at(i * s.stagger, partial(self._begin, i))
        schedule.at(self._killed_at, self._kill)
        try:
            with self._virtual_time():
                schedule.run(lambda: len(self._over) < s.robots, self._settle)
        except BaseException:
            for fault in self._end():
                log.error('beside it, a robot ended with an error', exc_info=fault)
            raise
        if faults := self._end():
            raise faults[0]
        self._processes[-1].engine.kv.check_integrity()
        if len(self._over) < s.robots:
            raise RuntimeError(f'{s.robots - len(self._over)} missions have not ended')
        return dict(
            missions=[self._mission(body) for body in self._bodies.values()],
            span=schedule.now,
            stalls=[x for process in self._processes for x in process.stalls],
            latencies=[x for process in self._processes for x in process.latencies],
            horizons=[h for process in self._processes for h in process.horizons],
            tokens=sum(process.voices.tokens for process in self._processes),
            answers=sum(process.voices.answers for process in self._processes),
            evicted=sum(process.voices.evicted for process in self._processes),
            refused=sum(process.voices.refused for process in self._processes),
            peak=max(process.peak for process in self._processes),
            spent=sum((process.device.spent for process in self._processes), Counter()),
            units=sum((process.device.units for process in self._processes), Counter()),
            batches=sum(process.server.counts['batches'] for process in self._processes),
        )

    @contextmanager
    def _virtual_time(self) -> Iterator[None]:
        """Let the KV budget and the registries of capsules count idle time in virtual time."""
        with ExitStack() as patches:
            for name in ('monotonic', 'perf_counter'):
                patches.enter_context(patch.object(time, name, lambda: self._schedule.now))
            yield

    @property
    def _over(self) -> list[Body]:
        return [body for body in self._bodies.values() if body.is_over]

    def _settle(self) -> None:
        self._processes[-1].settle()

    def _new_process(self) -> None:
        given = self._policy, self._settings, self._parts, self._costs
        self._processes.append(Process(*given, self._schedule, self._names))

    # ------------------------------------------------------------------ beginnings and ends

    def _begin(self, i: int) -> None:
        dt, name = self._policy.config.action_dt, self._names[i]
        body = Body(name, self._tables[i], self._cases[i], self._schedule, dt)
        self._bodies[name] = body
        self._think(body)
        until = self._schedule.now + self._settings.mission_seconds
        self._schedule.at(until, partial(self._time_up, body))

    def _think(self, body: Body) -> None:
        given = self._planner, self._settings, self._of(body.name)
        mind = self._minds[body.name] = Mind(body, self._processes[-1], *given)
        mind.turn = Turn(self._schedule, mind.live, partial(self._left, body))
        mind.turn.start()

    def _left(self, body: Body) -> None:
        self._processes[-1].leave(body.name)

    def _time_up(self, body: Body) -> None:
        if not body.is_over:
            self._minds[body.name].turn.kill()
            body.over(None)

    def _kill(self) -> None:
        """Kill the process, and continue the unfinished missions in a new one."""
        old, going = self._processes[-1], [b for b in self._bodies.values() if not b.is_over]
        words = {body.name: old.voices.asked(body.name) for body in going}
        old.kill()
        for body in going:
            self._minds[body.name].turn.kill()
        self._new_process()
        if self._settings.kill_every:
            self._schedule.at(self._schedule.now + self._settings.kill_every, self._kill)
        for body in going:
            body.killed(words[body.name])
            self._think(body)

    def _end(self) -> list[Exception]:
        """End every robot where it waits, and return the errors that they raised."""
        faults = []
        for mind in self._minds.values():
            try:
                mind.turn.kill()
            except Exception as error:  # the others are ended, too
                faults.append(error)
        return faults

    def _of(self, name: str) -> Path:
        return self._folder / name.strip('/')

    def _mission(self, body: Body) -> dict:
        case, record = body.case, body.record
        end = record.end
        right = end is not None and end.success == (case.ends == 'over')
        return dict(
            number=case.number,
            words=case.words,
            needs_memory=case.needs_memory,
            success=right and is_done(case, body.table.truth(), end.state.said),
            why=end.why if end else 'its time was up',
            seconds=record.seconds,
            steps=record.steps,
            plans=record.plans,
            wrong_plans=record.wrong_plans,
            computed_shares=record.computed_shares,
            capsules=record.capsules,
            restarts=[asdict(restart) for restart in record.restarts],
        )
