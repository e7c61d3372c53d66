"""A robot's mission in one process: from its beginning, or from where a killed process left it.

Knows which parts are on. Does not know other robots, nor when the process is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

from benchmarks.mission.__main__ import remembered
from benchmarks.mission.cases import Case
from benchmarks.mission.robot import How
from benchmarks.whole.body import Body
from benchmarks.whole.capsules import Capsules
from benchmarks.whole.planners import household
from benchmarks.whole.process import Process
from benchmarks.whole.robot import FleetRobot, on_device
from benchmarks.whole.settings import Settings
from benchmarks.whole.turns import Turn
from benchmarks.whole.ways import Parts
from embodied_kv.model.planner_checkpoint import LoadedPlanner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.mission import Mission, MissionState
from embodied_kv.planning.planning import Planning


def planning_config(settings: Settings, parts: Parts) -> PlanningConfig:
    """Return the config of planning; only the method of reuse depends on the parts."""
    return PlanningConfig(
        max_context_tokens=settings.context_tokens,
        recompute_ratio=settings.recompute_ratio,
        max_answer_tokens=settings.answer_tokens,
        reuse_method=settings.keep if parts.keep else settings.recompute,
        prefill_step_tokens=settings.step_tokens,
        host_cache_mib=settings.cache_mib,
    )


def prepare(
    case: Case, planner: LoadedPlanner, folder: Path, config: PlanningConfig, segments: int
) -> None:
    """Store the facts known before the mission, with their KV if the method reads it.

    segments: minimum number of facts; those of a household come first. It takes no virtual time.
    """
    facts = remembered(case, How())
    with Planning(planner, folder, config) as planning:
        planning.upsert(*map(astuple, household(max(0, segments - len(facts)))))
        for fact in facts:
            planning.advance()
            planning.upsert((fact.id, fact.kind, fact.text))
        if config.reuse_method != 'full':
            planning.warm()


class Mind:
    """A mission in one process.

    folder: survives the process. turn: the turn on which it runs, set by the caller that starts
    it.
    """

    turn: Turn

    def __init__(
        self,
        body: Body,
        process: Process,
        planner: LoadedPlanner,
        settings: Settings,
        folder: Path,
    ) -> None:
        self._body, self._process, self._planner = body, process, planner
        self._settings, self._folder = settings, folder
        self._state = body.record.state
        self._mission: Mission | None = None

    def live(self) -> None:
        """Run the mission to its end, on its turn."""
        body, process, parts = self._body, self._process, self._process.parts
        with ExitStack() as opened:
            planning = opened.enter_context(
                Planning(
                    self._planner,
                    self._folder / 'memory',
                    planning_config(self._settings, parts),
                )
            )
            capsules = None
            if parts.capsules:
                capsules = opened.enter_context(closing(self._capsules(planning)))
            has_restarted = body.record.restart is not None
            if has_restarted and (capsules is None or not capsules.restore()):
                self._cold()
            nothing: Callable[[], None] = lambda: None  # noqa: E731
            robot = FleetRobot(
                body,
                process,
                self.turn,
                planning,
                self._planner,
                self._settings,
                self._now,
                capsules.mark if capsules else nothing,
                capsules.during if capsules else nothing,
                capsules.rewind if capsules else nothing,
            )
            self._mission = Mission(robot, self._state, rewinds=parts.capsules, on_state=body.told)
            end = self._mission.run()
        self.turn.here(lambda: body.over(end))

    def _now(self) -> MissionState:
        return self._mission.state if self._mission else self._state

    def _capsules(self, planning: Planning) -> Capsules:
        def go_on(state: MissionState | None) -> None:
            self._state = state or self._state

        return Capsules(
            self._body,
            self._process,
            self.turn,
            planning,
            self._folder,
            self._process.fingerprint,
            self._settings.capsule_interval,
            self._now,
            go_on,
        )

    def _cold(self) -> None:
        """Restart without a capsule: the step is planned again.

        Open questions are prefilled and asked again.
        """
        self._state = replace(self._state, acting='')
        body, voices, turn = self._body, self._process.voices, self.turn
        if words := body.record.restart.words:
            seen = turn.here(lambda: body.see(body.instruction))
            work = partial(voices.look, seen)
            frame = on_device(turn, self._process, 'frame', work, body.name)
            for text, most in words:
                turn.here(lambda text=text, most=most: voices.ask(frame, text, most=most))
            frame.leave()
