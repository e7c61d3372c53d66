"""The node `policy_server`: serves the engine of this process to websocket clients of openpi.

It provides `kv/*` and diagnostics to ROS; the server itself is in `embodied_kv.serving`.
"""

from __future__ import annotations

import logging
from functools import partial

from rclpy.impl.rcutils_logger import RcutilsLogger

from embodied_kv.nodes.common import executable
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.kv_services import KvServices
from embodied_kv.nodes.common.lifecycle_node import ERROR, OK, SuiteNode
from embodied_kv.nodes.common.parameters import Parameters
from embodied_kv.planning.config import MemoryParams, PlanningConfig
from embodied_kv.serving.memories import Memories, MemoryConfig
from embodied_kv.serving.ray_engine import CloudConfig
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.config import ServedEngineConfig, ServerConfig
from embodied_kv.serving.websocket.server import PolicyServer
from embodied_kv.serving.websocket.sessions import Sessions

SERVING = logging.getLogger('embodied_kv.serving')


class RosLog(logging.Handler):
    """Forwards the log of the server, its access log included, to the log of a node."""

    def __init__(self, log: RcutilsLogger) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        # rclpy accepts one severity for each source line that logs.
        if record.levelno >= logging.ERROR:
            self._log.error(line)
        elif record.levelno >= logging.WARNING:
            self._log.warning(line)
        else:
            self._log.info(line)


class PolicyServerNode(SuiteNode):
    """Accepts connections while it is active."""

    engine_config = ServedEngineConfig

    def __init__(self, **arguments: object) -> None:
        super().__init__('policy_server', ServerConfig, SchedulingConfig, CloudConfig, **arguments)
        parts = (MemoryConfig, MemoryParams, PlanningConfig)
        named = [('memory.', part) for part in parts]
        self._memory_params = Parameters(self, named, lambda: self.configured)
        self._memories: Memories | None = None
        self._config: ServerConfig | None = None
        self._server: PolicyServer | None = None

    def find_host(self) -> EngineHost:
        self._memory_params.check()
        self._config = self.params.read(ServerConfig)
        self._config.keys()  # fails here if they cannot be read
        self._config.tls()
        host = super().find_host()
        self._scheduling = self.params.read(SchedulingConfig)
        self._profile = self._scheduling.profile_of(
            host.engine.config.max_batch_robots, host.profile
        )
        self._fingerprint = host.fingerprint  # reads every weight, before any client connects
        return host

    def setup(self) -> None:
        KvServices(self)
        suite, config = self.suite, self.host.engine.config
        self._cloud = self.params.read(CloudConfig).open(
            suite.preset, suite.checkpoint, config, self.embodiment.contract
        )
        if self._cloud is not None:
            self._release.callback(self._cloud.close)
        handler = RosLog(self.get_logger())
        SERVING.setLevel(logging.INFO)
        SERVING.addHandler(handler)
        self._release.callback(SERVING.removeHandler, handler)

    def start(self) -> None:
        host, config = self.host, self._config
        self._sessions = Sessions(
            host.engine,
            host.device,
            self._profile,
            config.max_connections,
            config.session_capsules_mib,
            config.all_capsules_mib,
            self._fingerprint,
            self._scheduling,
            self._cloud,
        )
        contract = self.embodiment.contract
        read = self._memory_params.read
        self._memories = Memories.of(
            *(read(part) for part in (MemoryConfig, MemoryParams, PlanningConfig)),
            contract.language.planner,
            host.device,
            self._sessions.idle,
            host.kv_budget,
            partial(self.log_info, 'planner'),
        )
        self._server = PolicyServer(config, self._sessions, contract, self._memories)
        host.listen(self._sessions.on_deltas)
        self._sessions.start()
        try:
            self.port = self._server.start()
        except OSError:
            self.stop()
            raise
        self.log_info('listening', f'serving on {config.scheme}://{config.host}:{self.port}')

    def stop(self) -> None:
        self._server.stop()
        if self._memories is not None:
            self._memories.close()
        self._sessions.stop()
        self.host.unlisten(self._sessions.on_deltas)

    def reload(self) -> bool:
        """Read keys and certificate again; return False if there are none."""
        names = 'api_keys_file', 'certificate'  # declared in every state of the node
        if not any(self.get_parameter(name).value for name in names):
            return False
        if self._server is not None:
            self._server.reload()
        return True

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        if not self._server.is_alive():
            return ERROR, 'the server has ended', {}
        if fault := self._sessions.fault():
            return ERROR, fault, dict(self._sessions.values())
        return OK, 'serving', dict(self._sessions.values())


def main() -> None:
    """Run the executable `policy_server`."""
    executable.run(PolicyServerNode)


if __name__ == '__main__':
    main()
