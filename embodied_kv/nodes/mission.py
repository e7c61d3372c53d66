"""The mission node: a robot's missions, in its own namespace.

Knows a lifecycle. Does not know missions.
"""

from __future__ import annotations

from collections.abc import Callable

from embodied_kv.errors import ErrorCode
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.missions.calls import Calls
from embodied_kv.nodes.missions.params import MissionParams, can_carry_out
from embodied_kv.nodes.robot_mission import FEEDBACK, RobotMission


class Mission(SuiteNode):
    """Serves `mission`, one at a time."""

    may_wait = True
    calls: Callable[..., Calls] = Calls

    def __init__(self, **arguments: object) -> None:
        super().__init__('mission', MissionParams, **arguments)

    @property
    def autostart(self) -> bool:
        """Return False where the policy answers no questions."""
        return super().autostart and can_carry_out(self)

    def setup(self) -> None:
        self.mission = RobotMission(self, self.host.session(self.robot), calls=self.calls)
        self._release.callback(self.mission.close)
        self.every(FEEDBACK, self.mission.look)

    def stop(self) -> None:
        self.mission.end('the mission node is not active any more', ErrorCode.NOT_ACTIVE)
        self.mission.wait()

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        state = self.mission.state
        if state is None:
            return OK, 'no mission', {}
        values = {'mission': state.words, 'part': state.part, 'steps': state.steps}
        failed = sum(not tried.done for tried in state.tried)
        return (WARN if failed else OK), state.acting or 'planning', values
