"""The parameters of the fleet's node: who is served, in which order, and by what beside chunks."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.control import execution_horizon
from embodied_kv.fleet.engines import Link
from embodied_kv.fleet.policies import BUCKET_ORDERS, SCHEDULERS, Kairos, scheduler
from embodied_kv.fleet.scheduler import Scheduler
from embodied_kv.nodes.common.parameters import one_of, param


@dataclass(frozen=True)
class FleetParams:
    """Who is served, and in which order."""

    robots: str = param(
        '', "Namespaces that are served, separated by commas; '' serves all that ask"
    )
    scheduler: str = param(
        'kairos',
        'Who goes first: kairos, fifo, autellix, deadline, shortest',
        check=one_of([*SCHEDULERS]),
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
    pending: bool = param(
        False,
        'For kairos: once a round is generated and executed, the wait for the next one counts '
        'while it lasts',
    )
    execution_horizon: str = param(
        'confidence:0.2:3',
        'H of requests that name none: whole, static:H or confidence:T:H_MIN',
        check=execution_horizon.parse,
        old='horizon',
    )
    max_queue_delay: float = param(
        0.0,
        'A request is held so long, s, for a fuller batch; meanwhile the engine speaks. '
        'Below what a robot still has to execute when it asks',
        range=(0.0, 1.0),
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
    language: bool = param(
        True, "Continue the contract's prompts, and answer language/* in each robot's namespace"
    )
    memory: bool = param(
        True, 'Remember what each robot learns, and answer memory/* in its namespace'
    )
    missions: bool = param(
        True, 'Carry out missions, action mission in the namespace of each robot'
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
            return Kairos(self.buckets, self.aging, self.bucket_order, self.pending)
        return scheduler(self.scheduler)

    @property
    def names(self) -> list[str]:
        """The robots, as namespaces."""
        given = [name.strip().strip('/') for name in self.robots.split(',')]
        return [f'/{name}' for name in given if name]


@dataclass(frozen=True)
class FleetMemoryParams:
    """How many robots have a memory."""

    planner_rows: int = param(
        32,
        "Rows of the planner's KV, one of each robot: with more robots, the last have no memory",
        range=(1, 4096),
    )
