"""The fleet node and its robots in virtual time: for measuring what a schedule does, and no more.

ROS is imported here and in `robot` alone, outside of `nodes`: what is measured are the real node
and its messages, and nothing of this scaffolding is part of the product.

All messages cross ROS, the node and its engine do what they always do; only the clock is a
schedule. Nothing waits for time to pass: a message takes none, a batch takes the seconds that the
engine's profile says, whatever it took in truth. So two runs agree, and neither the machine's
other work nor the cost of the robots' world changes a result. Knows orders and results; what the
robots live in, it is given.

`python -m benchmarks.fleet.serving.lockstep FD` takes orders from a connection, with the
world at its other end; see `serve`.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter

from benchmarks.common.workers import Workers
from benchmarks.fleet.serving.robot import PATIENCE, Habits, Player, RobotTopics, World
from benchmarks.fleet.serving.schedule import Act, Schedule
from benchmarks.fleet.serving.speech import Speech
from benchmarks.fleet.serving.stepped import Stepped
from embodied_kv.fleet.protocol import Receipt, Verdict
from embodied_kv.nodes.common import executable
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.lifecycle_node import SUCCESS
from embodied_kv.nodes.fleet.server_node import Fleet
from embodied_kv.serving.fleet_server import Result
from embodied_kv.types import Observation


@dataclass(frozen=True)
class Order:
    """A fleet that is to be run: a closed one, or one whose tasks arrive.

    parameters: of the fleet's node. habits: of its robots. starts: when each begins, s. tasks: of
    each, one after another, and again until all robots have done theirs once; the numbers mean
    something to the world alone. speech: what words are charged, s by kind and size;
    None for a mute fleet. streams: of all robots, at most; 0: as many as the engine has.
    arrivals: of each robot's tasks, s; of a closed fleet there are none. horizons: by task, where
    it has another policy than the habits say.
    """

    parameters: Mapping[str, object]
    habits: Habits
    starts: Sequence[float]
    tasks: Sequence[Sequence[int]]
    speech: Mapping[str, Mapping[int, float]] | None = None
    streams: int = 0
    arrivals: Sequence[Sequence[float]] = ()
    horizons: Mapping[int, str] = field(default_factory=dict)


class Lockstep(Fleet):
    """The fleet node in virtual time.

    receipts: sent to each robot. charged, computed: s of all batches, by the profile and in truth.
    latencies: s from each round's first request to its answer. speech: from `start` on.
    """

    def __init__(self, schedule: Schedule, order: Order, **arguments: object) -> None:
        super().__init__(partial(Stepped, clock=lambda: schedule.now), **arguments)
        self._schedule, self._order, self._wakes = schedule, order, math.inf
        self.receipts: Counter[str] = Counter()
        self.charged = self.computed = 0.0
        self._asked: dict[str, float] = {}  # robot -> moment
        self.latencies: list[float] = []

    def start(self) -> None:
        super().start()
        order, kv = self._order, self.host.engine.kv
        kv.set_limits(streams=order.streams or kv.decode_kv.rows)
        self.speech = Speech(self.host, self._schedule, order.speech or {}, self._slack.seconds)

    @property
    def has_met(self) -> list[str]:
        """The robots that may speak."""
        return self._language.robots if self._language else self._connections.robots

    @property
    def server(self) -> Stepped:
        return self._server

    def work(self) -> None:
        """Everything that was said, and what time brings. Raises RuntimeError for any fault."""
        if (moment := self.server.catch_up()) < self._wakes:
            self._wakes = moment
            self._schedule.at(moment, self._wake)
        self.speech.step()

    def _wake(self) -> None:
        self._wakes = math.inf

    def _deliver(self, robot: str, task: str, round: int, receipt: Receipt) -> None:
        self.receipts[robot] += 1
        if receipt.verdict is Verdict.QUEUED:
            self._asked[robot] = self._schedule.now
        elif receipt.verdict is Verdict.ANSWERED and robot in self._asked:
            self.latencies.append(self._schedule.now - self._asked.pop(robot))
        super()._deliver(robot, task, round, receipt)

    def _serve(self, frames: Sequence[Observation], deadline: float) -> Future[list[Result]]:
        began = time.perf_counter()
        results = super()._serve(frames, math.inf).result()
        self.computed += time.perf_counter() - began
        self.host.device.background(lambda: None).result()  # prompts have begun
        seconds = self._profile.latency(len(frames))
        self.charged += seconds
        promise: Future[list[Result]] = Future()
        moment = max(self._schedule.now, self.speech.free) + seconds
        self._schedule.at(moment, partial(promise.set_result, results))
        return promise


class Run:
    """One order, from the first request to the last task. Close it.

    Raises RuntimeError where the node cannot be brought up, or a message does not arrive.
    """

    def __init__(self, order: Order, world: World) -> None:
        self._schedule, self._closing = Schedule(), ExitStack()
        try:
            self._bring(order, world)
        except BaseException:
            self.close()
            raise

    def _bring(self, order: Order, world: World) -> None:
        robots = [f'/serving{i}' for i in range(len(order.tasks))]
        values = dict(order.parameters) | {'robots': ','.join(robots)}
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        node = self._node = Lockstep(self._schedule, order, parameter_overrides=overrides)
        self._closing.callback(node.end)
        self._executor = SingleThreadedExecutor()
        self._closing.callback(self._executor.shutdown)
        self._executor.add_node(node)
        if node.trigger_configure() != SUCCESS or node.trigger_activate() != SUCCESS:
            raise RuntimeError('the fleet node cannot be brought up: see the log')
        self._players: dict[str, Player] = {}
        for number, robot in enumerate(robots):
            topics = RobotTopics(robot)
            self._closing.callback(topics.close)
            given = order.habits, order.tasks[number], order.starts[number]
            arrivals = order.arrivals[number] if order.arrivals else ()
            also = self._schedule, self._tell, arrivals, order.horizons
            player = Player(number, topics, world, *given, *also)
            self._players[robot] = player

    def run(self) -> dict[str, object]:
        """The tasks as they went, and what the fleet did meanwhile; plain values."""
        players = self._players.values()
        self._until(lambda: all(player.topics.is_open for player in players), 'they met')
        self._until(lambda: len(self._node.has_met) == len(players), 'all were known')
        self._schedule.run(lambda: not all(player.is_done for player in players), self._settle)
        node, counts = self._node, self._node.server.counts
        return dict(
            tasks=[task for player in players for task in player.finished],
            batches=counts['batches'],
            served=counts['served'],
            charged=node.charged,
            computed=node.computed,
            span=self._schedule.now,
            decisions=node.server.scheduler.decisions,
            latencies=node.latencies,
            said=[text.strip() for text in node.speech.said.values()],
            spoken=node.speech.costs.spent,
        )

    def close(self) -> None:
        self._closing.close()

    def _tell(self, publish: Act) -> None:
        server = self._node.server
        before = server.told
        publish()
        self._until(lambda: server.told > before, 'a robot was heard')

    def _settle(self) -> None:
        """What follows from what happened, until every robot has heard its answers."""
        self._node.work()
        for robot, player in self._players.items():
            player.topics.listen(self._node.receipts[robot])
            if player.topics.answers:
                player.wake()

    def _until(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            if time.monotonic() > deadline:
                raise RuntimeError(f'{PATIENCE:.0f} s went by before {what}')
            self._executor.spin_once(timeout_sec=0.1)


class RemoteWorld:
    """The world at the other end of a connection: calls go there, and the answer comes back."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, robot: int, task: int) -> str:
        return self._call('begin', robot, task)

    def look(self, robot: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        return self._call('look', robot)

    def follow(self, robot: int, actions: np.ndarray, began: int) -> None:
        self._call('follow', robot, actions, began)

    def advance(self, robot: int, moment: int) -> tuple[bool, bool]:
        return self._call('advance', robot, moment)

    def _call(self, name: str, *arguments: object) -> object:
        self._connection.send((name, arguments))
        return self._connection.recv()


def serve(connection: Connection) -> None:
    """Takes orders, each a dict of `Order`'s fields, until one is None.

    Meanwhile it calls the world, as (name, arguments), and hears its answer; ('result', ...) ends
    an order. Whoever is at the other end is trusted: pickles cross.
    """
    world = RemoteWorld(connection)
    while (fields := connection.recv()) is not None:
        run = Run(Order(**fields | dict(habits=Habits(**fields['habits']))), world)
        try:
            with Workers():
                result = run.run()
        finally:
            run.close()
        connection.send(('result', (result,)))


def main() -> None:
    """Serve the connection whose file descriptor is the argument."""
    rclpy.init(args=['--ros-args', '--log-level', 'warn', '--disable-rosout-logs'])
    try:
        with (
            executable.unique_in_namespace(['fleet']),
            Connection(int(sys.argv[1])) as connection,
        ):
            serve(connection)
    finally:
        EngineHost.close()
        rclpy.try_shutdown()


if __name__ == '__main__':
    main()
