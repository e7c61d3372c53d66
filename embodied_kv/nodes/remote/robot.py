"""The executable `remote_robot`: a policy server computes actions, text, memory and capsules."""

from __future__ import annotations

from functools import partial

from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.nodes.common import executable
from embodied_kv.nodes.common.lifecycle_node import WARN
from embodied_kv.nodes.memory import Memory
from embodied_kv.nodes.mission import Mission
from embodied_kv.nodes.missions.clients import MissionClients
from embodied_kv.nodes.recorder import Recorder
from embodied_kv.nodes.remote.action import RemoteAction
from embodied_kv.nodes.remote.language import RemoteLanguage
from embodied_kv.nodes.remote.server_link import ConnectedNode, RemoteNode, ServerLink
from embodied_kv.nodes.session import Session
from embodied_kv.serving.remote_policy.remote_planning import RemotePlanning


class RemoteMemory(ConnectedNode, Memory):
    """Serves `memory/*`; the server stores the memory under the namespace of the robot."""

    @property
    def autostart(self) -> bool:
        """Return whether to start; a missing planner is reported by the server."""
        return self.get_parameter('autostart').value

    def _open(self) -> RemotePlanning:
        self._server = ServerLink(self, self.server_params)
        name = self.robot.strip('/').replace('/', '.') or 'robot'
        return RemotePlanning(lambda: self._server.policy, name)

    def start(self) -> None:
        self._server.open()
        super().start()

    def stop(self) -> None:
        super().stop()
        self._server.close()

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        if problem := self._server.policy.problem:
            return WARN, problem, {}
        try:
            return super().report()
        except RobotMemoryError as fault:
            return WARN, str(fault), {}


class RemoteSession(RemoteNode, Session):
    """Serves `capsule/*`; each capsule contains a capsule of the server."""


class RemoteMission(RemoteNode, Mission):
    """Serves `mission`; the policy server answers one question at a time."""

    calls = staticmethod(partial(MissionClients, at_once=1))


def main() -> None:
    """Run the executable `remote_robot`."""
    executable.run(
        action=RemoteAction,
        language=RemoteLanguage,
        session=RemoteSession,
        memory=RemoteMemory,
        mission=RemoteMission,
        recorder=Recorder,
    )


if __name__ == '__main__':
    main()
