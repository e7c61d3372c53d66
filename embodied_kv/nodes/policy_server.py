"""The node `policy_server`: serves the engine of this process to websocket clients of openpi.

It provides `kv/*` and diagnostics to ROS; the server itself is in `embodied_kv.serving`.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial

from rclpy.impl.rcutils_logger import RcutilsLogger

from embodied_kv.nodes.common import executable
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.kv_services import KvServices
from embodied_kv.nodes.common.lifecycle_node import ERROR, OK, SuiteNode
from embodied_kv.nodes.common.parameters import Parameters
from embodied_kv.planning.config import MemoryParams, PlanningConfig
from embodied_kv.serving.memories import MemoryConfig
from embodied_kv.serving.ray_engine import CloudConfig
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.config import ServedEngineConfig, ServerConfig
from embodied_kv.serving.websocket.server import PolicyServer, open_server

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
    defers_traces = False  # it cannot know when the arms of its clients are at rest
    _config: ServerConfig  # set by configure

    def __init__(self, **arguments: object) -> None:
        super().__init__('policy_server', ServerConfig, SchedulingConfig, CloudConfig, **arguments)
        parts = (MemoryConfig, MemoryParams, PlanningConfig)
        named = [('memory.', part) for part in parts]
        self._memory_params = Parameters(self, named, lambda: self.configured)
        self._server: PolicyServer | None = None
        self._serving = ExitStack()  # while it is active

    def find_host(self) -> EngineHost:
        self._memory_params.check()
        self._config = self.params.read(ServerConfig)
        self._config.keys()  # fails here if they cannot be read
        self._config.tls()
        host: EngineHost = super().find_host()
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
        config, read = self._config, self._memory_params.read
        self._server = self._serving.enter_context(
            open_server(
                self.host,
                self._profile,
                self.embodiment.contract,
                config,
                self._scheduling,
                (read(MemoryConfig), read(MemoryParams), read(PlanningConfig)),
                self._cloud,
                partial(self.log_info, 'planner'),
                self._fingerprint,
            )
        )
        port = self._server.port
        self.log_info('listening', f'serving on {config.scheme}://{config.host}:{port}')

    def stop(self) -> None:
        self._serving.close()

    def reload(self) -> bool:
        """Read keys and certificate again; return False if there are none."""
        names = 'api_keys_file', 'certificate'  # declared in every state of the node
        if not any(self.get_parameter(name).value for name in names):
            return False
        if self._server is not None:
            self._server.reload()
        return True

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        if self._server is None or not self._server.is_alive():
            return ERROR, 'the server has ended', {}
        fault, values = self._server.sessions.fault(), self._server.sessions.values()
        return (ERROR, fault, dict(values)) if fault else (OK, 'serving', dict(values))


def main() -> None:
    """Run the executable `policy_server`."""
    executable.run(policy_server=PolicyServerNode)


if __name__ == '__main__':
    main()
