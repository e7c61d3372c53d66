"""The memory of a robot without a model: its policy server keeps it, and plans with it."""

from __future__ import annotations

from embodied_kv.memory.segment import MemoryFault
from embodied_kv.nodes.common.lifecycle_node import WARN
from embodied_kv.nodes.common.parameters import Parameters
from embodied_kv.nodes.common.remote_host import RemoteHost
from embodied_kv.nodes.memory import Memory, PlansWithMemory
from embodied_kv.nodes.remote.params import RemoteParams
from embodied_kv.nodes.remote.server_link import ServerLink, remote_host
from embodied_kv.serving.remote_policy.remote_planning import RemotePlanning


class RemoteMemory(Memory):
    """Answers `memory/*`, and remembers what comes on `memory/observe`.

    The memory has the name of the robot's namespace at the server.
    """

    on_engine = False

    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)
        self._server_params = Parameters(
            self, [('server.', RemoteParams)], lambda: self.configured
        )

    @property
    def autostart(self) -> bool:
        """Also without a planner here: the server has one, or says that it has none."""
        return self.get_parameter('autostart').value

    def find_host(self) -> RemoteHost:
        return remote_host(self)

    def _open(self) -> PlansWithMemory:
        self._server = ServerLink(self, self._server_params.read(RemoteParams))
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
        except MemoryFault as fault:
            return WARN, str(fault), {}


def memory(**arguments: object) -> RemoteMemory:
    """The memory node of this namespace: as anywhere, there is one."""
    return RemoteMemory(**arguments)
