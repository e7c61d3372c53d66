"""A robot of a fleet in virtual time: its topics, and what it does with the answers.

It asks, repeats and counts actions as `fleet_client` does (`RequestTiming` decides), and executes
them as the simulator does. That node itself runs on the steady clock, so it cannot be used here.
What is different: the robot asks at the very moment at which it is due, with an image of that
moment, and acts on an answer at its next set-point. Its own clock counts set-points from its
start. ROS is imported for its topics (see `lockstep`).
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from benchmarks.fleet.serving.schedule import Act, Schedule
from embodied_kv.fleet.request_timing import RequestTiming
from embodied_kv.msg import FleetAnswer, FleetRequest
from embodied_kv.nodes.fleet import messages
from embodied_kv.nodes.fleet.messages import ANSWER, ANSWERS, FINISHED, REQUEST, REQUESTS

SET_POINTS = 100  # a second; of the simulator
PATIENCE = 20.0  # s, in truth, that a message may take
_ROUNDING = 1e-6  # moments closer than this are the same


class World(Protocol):
    """What the robots live in; moments are counted in set-points since the task's begin."""

    def begin(self, robot: int, task: int) -> str:
        """The robot's next task: the instruction."""

    def look(self, robot: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Images by view, uint8 [height, width, 3], and positions float [joints], as it is now."""

    def follow(self, robot: int, actions: np.ndarray, began: int) -> None:
        """From now on these actions [n, joints]; the first was due at `began`, then every dt."""

    def advance(self, robot: int, moment: int) -> tuple[bool, bool]:
        """Up to this moment: whether the task is done, and whether its time is up."""


@dataclass(frozen=True)
class Habits:
    """How all robots ask, as the parameters of `fleet_client`; and how often a task is judged.

    execution_horizon: the policy that they name. dt: s between two actions. judged: set-points
    between two checks whether the task is done.
    """

    execution_horizon: str
    joints: tuple[str, ...]
    dt: float
    request_ahead: int = 1
    retry_interval: float = 0.1
    judged: int = 10


class RobotTopics:
    """A robot's topics in its namespace.

    receipts: how many came. answers: those that say more than that it waits, unread.
    """

    def __init__(self, robot: str) -> None:
        self._robot = robot
        self._node = Node(
            'robot', namespace=robot, start_parameter_services=False, enable_rosout=False
        )
        self._requests = self._node.create_publisher(FleetRequest, REQUEST, REQUESTS)
        self._finished = self._node.create_publisher(String, FINISHED, REQUESTS)
        self._node.create_subscription(FleetAnswer, ANSWER, self._hear, ANSWERS)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self._node)
        self.receipts, self.answers = 0, []

    @property
    def is_open(self) -> bool:
        """Whether robot and fleet have found each other."""
        heard = self._requests, self._finished
        return bool(
            all(publisher.get_subscription_count() for publisher in heard)
            and self._node.count_publishers(ANSWER)
        )

    def ask(self, message: FleetRequest) -> None:
        self._requests.publish(message)

    def finish(self, task: str) -> None:
        self._finished.publish(String(data=task))

    def listen(self, receipts: int) -> None:
        """Until so many have come in all. Raises RuntimeError where they do not."""
        deadline = time.monotonic() + PATIENCE
        while self.receipts < receipts:
            if time.monotonic() > deadline:
                raise RuntimeError(f'an answer to {self._robot} did not arrive')
            self._executor.spin_once(timeout_sec=0.1)

    def close(self) -> None:
        self._executor.shutdown()
        self._node.destroy_node()

    def _hear(self, answer: FleetAnswer) -> None:
        self.receipts += 1
        if answer.verdict not in (FleetAnswer.QUEUED, FleetAnswer.DUPLICATE):
            self.answers.append(answer)


class Player:
    """One robot and its tasks, one after another; then again, so that the fleet stays as busy.

    start: when it begins, s. tell: publishes, by what it is given, until the fleet has heard it.
    arrivals: of each task, s; it is begun no sooner, and none again. horizons: of tasks that have
    a policy of their own. finished: a dict for each task that was over once: its number, success,
    begin, seconds since it arrived or was begun, those of them that the robot stood still, and the
    horizon of every round.
    """

    def __init__(
        self,
        number: int,
        topics: RobotTopics,
        world: World,
        habits: Habits,
        tasks: Sequence[int],
        start: float,
        schedule: Schedule,
        tell: Callable[[Act], None],
        arrivals: Sequence[float] = (),
        horizons: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.topics, self.finished = topics, []
        self._number, self._world, self._habits, self._tell = number, world, habits, tell
        self._tasks, self._start, self._schedule = tasks, start, schedule
        self._arrivals, self._own_horizons = arrivals, horizons
        self._begun = 0  # tasks
        self._planned: set[int] = set()  # set-points at which it looks what to do
        schedule.at(start, lambda: self._begin(0))

    @property
    def is_done(self) -> bool:
        """Whether every task was over once."""
        return len(self.finished) == len(self._tasks)

    def wake(self) -> None:
        """Something has come: act on it at the next set-point."""
        elapsed = (self._schedule.now - self._start) * SET_POINTS
        self._plan(math.ceil(elapsed - _ROUNDING))

    def _plan(self, moment: int) -> None:
        if moment not in self._planned:
            self._planned.add(moment)
            self._schedule.at(self._start + moment / SET_POINTS, lambda: self._look(moment))

    def _begin(self, moment: int) -> None:
        arrived = moment
        if self._arrivals:
            if self._begun == len(self._tasks):
                return
            elapsed = (self._arrivals[self._begun] - self._start) * SET_POINTS
            arrived = math.ceil(elapsed - _ROUNDING)
            if arrived > moment:
                due = self._start + arrived / SET_POINTS
                self._schedule.at(due, lambda: self._begin(arrived))
                return
        habits, self._task = self._habits, self._tasks[self._begun % len(self._tasks)]
        self._horizon = self._own_horizons.get(self._task, habits.execution_horizon)
        self._begun += 1
        self._arrived, self._first, self._still = arrived, moment, 0.0
        self._instruction = self._world.begin(self._number, self._task)
        self._timing = RequestTiming(habits.dt, habits.request_ahead, habits.retry_interval)
        self._timing.begin(f'{self._begun}')  # a name that was never used
        self._observed: dict[int, float] = {}  # stamp -> moment, s
        self._horizons: list[int] = []
        self._plan(moment)

    def _look(self, moment: int) -> None:
        self._planned.discard(moment)
        done, over = self._world.advance(self._number, moment - self._first)
        if done or over:
            self._finish(moment, done)
            return
        now = moment / SET_POINTS
        for answer in self.topics.answers:
            self._take(answer, now)
        self.topics.answers.clear()
        if self._timing.due(now + _ROUNDING):
            self._ask(moment)
        habits = self._habits
        judged = moment + habits.judged - (moment - self._first) % habits.judged
        self._plan(min(judged, max(moment + 1, self._due)))

    @property
    def _due(self) -> int:
        """The set-point at which it is to ask, if nothing comes before."""
        habits, timing = self._habits, self._timing
        if timing.waiting:
            return self._asked + math.ceil(habits.retry_interval * SET_POINTS - _ROUNDING)
        return math.ceil((timing.ends - habits.request_ahead * habits.dt) * SET_POINTS - _ROUNDING)

    def _ask(self, moment: int) -> None:
        images, positions = self._world.look(self._number)
        timing, now, stamp = self._timing, moment / SET_POINTS, moment * 10**9 // SET_POINTS
        execution = timing.execution(now)
        self._asked, self._observed[stamp] = moment, now
        message = messages.request_message(
            timing.task,
            timing.ask(now),
            self._horizon,
            execution,
            {view: _image(pixels) for view, pixels in images.items()},
            JointState(name=self._habits.joints, position=positions.tolist()),
            self._instruction,
            stamp,
        )
        self._tell(lambda: self.topics.ask(message))

    def _take(self, answer: FleetAnswer, now: float) -> None:
        timing = self._timing
        if (answer.task, answer.round) != (timing.task, timing.round) or not timing.waiting:
            return  # of a task that is over
        if answer.verdict != FleetAnswer.ANSWERED:
            reason = answer.message or 'it is late'
            raise RuntimeError(f'round {timing.round} of task {self._task}: {reason}')
        chunk = messages.chunk(answer, self._habits.joints, 0.0)
        self._still += now - min(now, max(timing.ends, self._first / SET_POINTS))
        began = timing.take(chunk.execution_horizon, self._observed[chunk.stamp], now)
        self._horizons.append(chunk.execution_horizon)
        actions = chunk.values[: chunk.execution_horizon]
        self._world.follow(self._number, actions, round(began * SET_POINTS) - self._first)

    def _finish(self, moment: int, done: bool) -> None:
        if not self.is_done:
            self.finished.append(
                dict(
                    task=self._task,
                    success=done,
                    begin=self._start + self._first / SET_POINTS,
                    seconds=(moment - self._arrived) / SET_POINTS,
                    still=self._still,
                    horizons=self._horizons,
                )
            )
        self.topics.answers.clear()
        self._tell(lambda: self.topics.finish(self._timing.task))
        self._begin(moment)


def _image(pixels: np.ndarray) -> Image:
    """An rgb8 message of uint8 [height, width, 3]."""
    height, width, _ = pixels.shape
    message = Image(height=height, width=width, encoding='rgb8', step=3 * width)
    message.data = array('B', pixels.tobytes())  # the one type that rclpy takes without a look
    return message
