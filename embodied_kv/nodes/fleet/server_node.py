"""The fleet node: many robots' requests become batches of one engine, and their answers chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from embodied_kv.control import execution_horizon
from embodied_kv.engine.guidance import leftover
from embodied_kv.fleet import profile
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState, Link
from embodied_kv.fleet.policies import BUCKET_ORDERS, SCHEDULERS, Kairos, scheduler
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Receipt, Verdict
from embodied_kv.fleet.scheduler import Scheduler
from embodied_kv.fleet.trace_writer import TraceWriter
from embodied_kv.msg import FleetRequest
from embodied_kv.nodes.common import executable
from embodied_kv.nodes.common.lifecycle_node import ERROR, OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import one_of, param
from embodied_kv.nodes.fleet import messages
from embodied_kv.nodes.fleet.connections import Connections
from embodied_kv.nodes.fleet.robot_proxy import RobotProxy
from embodied_kv.nodes.fleet.session import FleetSession, SessionThread
from embodied_kv.serving.batch import KeptRows, batch_seconds, profile_of, serve
from embodied_kv.serving.fleet_server import FleetServer, Result
from embodied_kv.serving.remote import RemoteEngine
from embodied_kv.types import Guide, Observation

HERE, CLOUD = 'here', 'cloud'  # the engine of this process, and one in a Ray cluster


@dataclass(frozen=True)
class FleetParams:
    """Who is served, and in which order."""

    robots: str = param(
        '', "Namespaces that are served, separated by commas; '' serves all that ask"
    )
    scheduler: str = param(
        'kairos', 'Who goes first: kairos, fifo, autellix, shortest', check=one_of([*SCHEDULERS])
    )
    buckets: int = param(10, 'Buckets of the wait ratio, for kairos', range=(1, 1000))
    aging: int = param(
        50, 'A request rises a bucket after so many decisions without it', range=(1, 100_000)
    )
    bucket_order: str = param(
        'longest',
        'Order within a bucket: longest, shortest or fifo',
        check=one_of(BUCKET_ORDERS),
        old='within',
    )
    execution_horizon: str = param(
        'confidence:0.2:3',
        'H of requests that name none: whole, static:H or confidence:T:H_MIN',
        check=execution_horizon.parse,
        old='horizon',
    )
    stale_after: float = param(
        0.1,
        'An observation that waited longer, s, counts as stale',
        range=(0.0, 60.0),
        old='fresh',
    )
    robot_timeout: float = param(
        10.0,
        'A robot that says nothing for so long, s, has vanished',
        range=(0.1, 3600.0),
        old='silence',
    )
    profile: str = param(
        '', "YAML file of the engine's seconds by batch size; '' measures them when configured"
    )
    trace: str = param('', "File to write what is executed into; '' writes none")
    capsules: bool = param(
        True, "Keep each robot's newest row, and answer capsule/* in its namespace"
    )

    cloud: str = param(
        '', "Ray address of one more engine, 'local' for a cluster of this machine; '' uses none"
    )
    cloud_device: str = param('cuda', 'Device of that engine: cpu or cuda')
    cloud_latency: float = param(0.02, 'Of the network to it, one way, s', range=(0.0, 10.0))
    cloud_mbit: float = param(100.0, 'Megabits per second, either way', range=(0.001, 1e6))

    @property
    def link(self) -> Link:
        """The network to the cloud."""
        rate = self.cloud_mbit * 1e6 / 8
        return Link(self.cloud_latency, rate, rate)

    @property
    def order(self) -> Scheduler:
        """The scheduler with its settings."""
        if self.scheduler == 'kairos':
            return Kairos(self.buckets, self.aging, self.bucket_order)
        return scheduler(self.scheduler)

    @property
    def names(self) -> list[str]:
        """The robots, as namespaces."""
        given = [name.strip().strip('/') for name in self.robots.split(',')]
        return [f'/{name}' for name in given if name]


class Fleet(SuiteNode):
    """Hears `ROBOT/fleet/request`, answers on `ROBOT/fleet/answer`.

    server: makes the server that it drives; one with another clock, for instance.
    """

    def __init__(
        self, server: Callable[..., FleetServer] = FleetServer, **arguments: object
    ) -> None:
        super().__init__('fleet', FleetParams, **arguments)
        self._new_server = server
        self._options = {name: arguments[name] for name in arguments.keys() - {'namespace'}}

    def setup(self) -> None:
        self._params = self.params.read(FleetParams)
        self._profile = self._measured()
        seconds = self._profile.latency(self._profile.saturation)
        self.log_info(
            'batches',
            f'batches of up to {self._profile.saturation} robots, which take '
            f'{seconds * 1e3:.0f} ms',
        )
        self._cloud = self._remote() if self._params.cloud else None
        self._kept = KeptRows(self.host.engine) if self._params.capsules else None
        self.every(0.2, self._update_connections)

    def _measured(self) -> Profile:
        p, most = self._params, self.host.engine.config.robots
        if not p.profile:
            engine = self.host.engine
            seconds = self.host.device.call(lambda: batch_seconds(engine)).result()
            return profile_of(self.host.model, seconds)
        found = profile.read(Path(p.profile).expanduser())
        if found.saturation > most:
            raise ValueError(
                f'{p.profile} fills batches of {found.saturation}, engine.robots is {most}'
            )
        return found

    def _remote(self) -> RemoteEngine:
        """The engine elsewhere, of the same model and settings, until cleanup."""
        p, suite = self._params, self.suite
        if not suite.preset:
            raise ValueError('parameter preset: name the model that the cloud is to load')
        config = replace(self.host.engine.config, device=p.cloud_device)
        address = '' if p.cloud == 'local' else p.cloud
        cloud = RemoteEngine(
            address, suite.preset, suite.checkpoint, config, self.embodiment.contract
        )
        self._release.callback(cloud.close)
        return cloud

    def start(self) -> None:
        p, model = self._params, self.host.model
        trace = TraceWriter(Path(p.trace).expanduser(), model.action_dt) if p.trace else None
        engines, serve = [EngineState(HERE, self._profile)], {HERE: self._serve}
        if self._cloud is not None:
            found = profile_of(model, self._cloud.seconds)
            engines.append(EngineState(CLOUD, found, p.link))
            serve[CLOUD] = self._cloud
        self._sessions = SessionThread(self, self._robot_capsules) if p.capsules else None
        dispatcher = Dispatcher(p.order, engines, p.stale_after)
        self._server = self._new_server(dispatcher, serve, self._deliver, p.robot_timeout, trace)
        self._connections = Connections(
            self,
            p.names,
            on_request=self._surviving(self._on_request),
            on_finished=self._surviving(self._server.finish),
            on_joined=self._joined,
            on_left=self._left,
        )
        self._server.start()
        if self._sessions:
            self._sessions.start()

    def stop(self) -> None:
        self._server.stop()
        self._connections.close()
        if self._sessions:
            self._sessions.stop()
            self.host.device.call(self._kept.clear).result()

    def _update_connections(self) -> None:
        self._connections.update()

    # ------------------------------------------------------------------ who is there

    def _joined(self, robot: str) -> None:
        if self._sessions:
            self._sessions.open(RobotProxy(self, robot, self.host.model, self.embodiment.axes))

    def _left(self, robot: str) -> None:
        self._server.vanish(robot)
        if self._sessions:
            self._sessions.close(robot)
            self.host.device.call(lambda: self._kept.drop(robot))

    def _robot_capsules(self, actor: RobotProxy) -> FleetSession:
        return FleetSession(self.host, self._kept, actor, **self._options)

    # ------------------------------------------------------------------ what robots say

    def _on_request(self, robot: str, message: FleetRequest) -> None:
        try:
            request = messages.request(message, robot, self._params.execution_horizon)
            seen = messages.observation(message, robot, self.host.model, self.embodiment.state)
            seen = replace(seen, guide=self._guide(message, seen))
        except ValueError as error:
            self.warn_throttled('request', f'a request of {robot} is refused: {error}')
            self._deliver(robot, message.task, message.round, Receipt(Verdict.REFUSED, str(error)))
            return
        self._server.submit(request, seen)

    def _guide(self, message: FleetRequest, seen: Observation) -> Guide | None:
        """What its chunk is to go on from. Raises ValueError here, before others are with it."""
        if self.host.engine.config.rtc == 'off':
            return None
        guide = messages.guide(message, self.host.model, self.embodiment.actions)
        leftover(guide, self.host.engine.policy, seen.state)
        return guide

    def _deliver(self, robot: str, task: str, round: int, receipt: Receipt) -> None:
        answer = messages.answer_message(task, round, receipt, self.embodiment.actions)
        self._connections.send(robot, answer)

    def _serve(self, frames: Sequence[Observation], deadline: float) -> Future[list[Result]]:
        engine, kept = self.host.engine, self._kept
        return self.host.device.call(lambda: serve(engine, frames, deadline, kept))

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        values = {'connections': len(self._connections.robots), **self._server.values()}
        if not all(engine.alive for engine in self._server.dispatcher.engines.values()):
            return ERROR, 'an engine owes an answer, or has failed', values
        if not self._connections.robots:
            return WARN, 'no robot asks', values
        return OK, 'serving', values


def main() -> None:
    """Run the executable `fleet`, in a process of its own."""
    executable.run(Fleet)


if __name__ == '__main__':
    main()
