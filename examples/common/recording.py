"""Record an expert's episodes as the node recorder does: MCAP files for `data.export`.

The recorded command is the expert's. Where joints are disturbed they receive another command, so
that the data also has the reaction of the expert. Time is the simulation's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from geometry_msgs.msg import PointStamped
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from embodied_kv.data.recording_file import PART, Channel, RecordingFile, RecordingFullError
from embodied_kv.msg import ActionChunk, ControlState
from embodied_kv.nodes.common.publishers import type_name
from embodied_kv.nodes.recording.topics import definition, recorded
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import to_text

from remote import World

TRUTH = 'truth/red_cube'
SECOND = 10**9  # ns
GAP = 1  # s between two episodes
MOST = 2**34  # bytes of a recording, at most
WANDERS, KICKED = 0.3, 0.25  # s: time constant of a wandering, duration of a kick

HOW = {
    'calm': 'share of episodes without disturbances',
    'wander': 'rad that joints wander',
    'kick': 'rad of a kick',
    'often': 'kicks in a second',
}
Moments = list[tuple[dict, np.ndarray]]  # observations and their commands, SI [J]


@dataclass(frozen=True)
class Disturbed:
    """Disturbances of the commands of joints. places: indices of these joints.

    calm: share of episodes without disturbances. wander, kick: deviations, rad; often: kicks per
    second.
    """

    places: tuple[int, ...]
    calm: float
    wander: float
    kick: float
    often: float

    def pushes(self, rng: np.random.Generator, joints: int, dt: float) -> Iterator[np.ndarray]:
        """Yield [joints] rad for each step of an episode: zeros, or a wandering with kicks."""
        slow, lasts, count = round(WANDERS / dt), round(KICKED / dt), len(self.places)
        calm, pushed = rng.random() < self.calm, np.zeros(joints)
        wander, kick, left = np.zeros(count), np.zeros(count), 0
        while True:
            wander += -wander / slow + rng.normal(0, self.wander * np.sqrt(2 / slow), count)
            if rng.random() < self.often * dt:
                kick, left = rng.normal(0, self.kick, count), lasts
            left -= 1
            if not calm:
                pushed[list(self.places)] = wander + (kick if left >= 0 else 0)
            yield pushed.copy()


@dataclass(frozen=True)
class Task:
    """A task to record. done: word for success in messages; longest: s of an episode at most.

    open: opens a world with images of the given side, pixels.
    """

    robot: Embodiment
    instruction: str
    done: str
    longest: float
    disturbed: Disturbed
    open: Callable[[int], AbstractContextManager[World]]


class Episodes:
    """One recording, in simulated time. compression: of images, as of the recorder."""

    def __init__(self, path: Path, task: Task, compression: str) -> None:
        robot = task.robot
        self._robot, self._instruction, self._now = robot, task.instruction, GAP * SECOND
        self._dt = round(SECOND * robot.contract.dt)
        topics = recorded(robot.contract, compression, 95)
        self._topics = {topic.topic: topic for topic in topics}
        kept = dict(topic.kept_as for topic in topics) | dict.fromkeys(
            [TRUTH, *(f'{TRUTH}/{view}' for view in robot.contract.views)], PointStamped
        )
        channels = tuple(
            Channel(f'/{name}', type_name(kind), definition(kind)) for name, kind in kept.items()
        )
        facts = {
            'namespace': '/',
            'robot_type': robot.contract.robot_type,
            'rate': f'{robot.contract.fps:g}',
            'ros_time': str(self._now),
        }
        self._file = RecordingFile(path, MOST, channels, facts, to_text(robot.contract))

    def add(self, moments: Moments) -> None:
        """Add an episode. Raises RecordingFullError, OSError."""
        self._put('instruction', String(data=self._instruction))
        self._put('control/state', ControlState(state=ControlState.ARMED))
        for number, (seen, command) in enumerate(moments):
            self._see(seen)
            self._know(seen)
            self._command(number, command)
            self._now += self._dt
        self._put('control/state', ControlState(state=ControlState.DISARMED))
        self._file.flush()
        self._now += GAP * SECOND

    def finish(self, end: str = 'all episodes are in it') -> None:
        """Complete the file. end: reason of the end. Raises OSError."""
        self._file.finish({'end': end})

    def abandon(self) -> None:
        """Close the file after an OSError; complete data remains for `data.repair`."""
        self._file.abandon()

    def _see(self, seen: dict) -> None:
        heard: dict[str, list[str]] = {}
        for number in self._robot.state.dimensions:
            heard.setdefault(number.topic, []).append(number.axis)
        for topic, joints in heard.items():
            message = JointState(name=joints)
            for place in map(self._robot.joints.index, joints):
                message.position.append(float(seen['joints'][place]))
                message.velocity.append(float(seen['speeds'][place]))
            self._put(topic, message)
        for view, pixels in seen['pictures'].items():
            rows, columns, _ = pixels.shape
            picture = Image(height=rows, width=columns, encoding='rgb8', step=3 * columns)
            picture.data = pixels.tobytes()
            self._put(self._robot.contract.views[view].channel.topic, picture)

    def _know(self, seen: dict) -> None:
        """Add the cube's position: m in a fixed frame, and (column, row) in its images."""
        (x, y, z), pixels = seen['cube'].tolist(), seen['pixels']
        places = {TRUTH: (x, y, z)}
        places |= {f'{TRUTH}/{view}': (*at.tolist(), 0.0) for view, at in pixels.items()}
        for topic, (x, y, z) in places.items():
            message = PointStamped()
            message.point.x, message.point.y, message.point.z = x, y, z
            self._put(topic, message)

    def _command(self, number: int, command: np.ndarray) -> None:
        """Add the chunk of a policy with one action, and the commands of the controllers."""
        chunk = ActionChunk(
            joint_names=list(self._robot.axes),
            dt=self._robot.contract.dt,
            chunk_size=1,
            values=command.tolist(),
            execution_horizon=1,
            sequence=number,
            source=ActionChunk.FRESH,
            deadline_met=True,
        )
        self._put('action_chunk', chunk)
        for output in self._robot.outputs:
            point = JointTrajectoryPoint(positions=command[list(output.index)].tolist())
            point.time_from_start.nanosec = self._dt
            told = JointTrajectory(joint_names=list(output.axes), points=[point])
            self._put(output.topic, told)

    def _put(self, topic: str, message: object) -> None:
        if hasattr(message, 'header'):
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(self._now, SECOND)
        data, kept = serialize_message(message), self._topics.get(topic)
        if kept is not None:
            topic, data = kept.kept_as[0], kept.convert(data) if kept.convert else data
        self._file.add(f'/{topic}', self._now, data)


def episode(world: World, task: Task, seed: int) -> Moments | None:
    """Return observations and commands until the task is done; None if it is not done in time."""
    rng, robot = np.random.default_rng(seed), task.robot
    pushes = task.disturbed.pushes(rng, len(robot.joints), robot.contract.dt)
    seen, moments = world.reset(seed), []
    while len(moments) < task.longest * robot.contract.fps:
        joints = world.expert()
        moments.append((seen, joints))
        seen = world.step(joints + next(pushes))
        if seen['done']:
            return moments
    return None


@contextmanager
def finished(file: Episodes) -> Iterator[None]:
    """Complete the file at the end, with the reason of the end.

    After an OSError the partial file remains.
    """
    try:
        try:
            yield
        except OSError:
            raise
        except BaseException as error:
            file.finish(f'it was broken off: {str(error) or type(error).__name__}')
            raise
        file.finish()
    except OSError:
        file.abandon()
        raise


def record(task: Task, out: Path, count: int, first: int, size: int, compression: str) -> None:
    """Record `count` episodes into a file; the starts are seeds from `first` on.

    Raises RuntimeError, OSError, RecordingFullError; the file keeps earlier episodes.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with task.open(size) as world:
        file, kept, steps = Episodes(out, task, compression), 0, 0
        try:
            with finished(file):
                for seed in range(first, first + count):
                    if moments := episode(world, task, seed):
                        file.add(moments)
                        kept, steps = kept + 1, steps + len(moments)
                    else:
                        said = f'not {task.done} within {task.longest:g} s, left out'
                        print(f'start {seed}: {said}', flush=True)
        finally:
            print(f'{out}: {kept} of {count} episodes, {steps} steps')


def run(task: Task, description: str, episodes: int) -> None:
    """Parse the command line and record. episodes: default number."""
    parser = argparse.ArgumentParser(prog='record', description=description)
    parser.add_argument('out', type=Path, help='a new file, NAME.mcap')
    parser.add_argument('--episodes', type=int, default=episodes)
    parser.add_argument('--seed', type=int, default=0, help='of the first start')
    parser.add_argument('--size', type=int, default=96, help="pixels of a picture's side")
    parser.add_argument('--compression', choices=('jpeg', 'png'), default='jpeg')
    for name, said in HOW.items():
        usual = getattr(task.disturbed, name)
        parser.add_argument(f'--{name}', type=float, default=usual, help=said)
    told = parser.parse_args()
    how = {name: getattr(told, name) for name in HOW}
    task = replace(task, disturbed=replace(task.disturbed, **how))
    if told.out.suffix != '.mcap' or told.out.exists():
        parser.error(f'{told.out}: name a new file that ends with .mcap')
    part = told.out.with_name(told.out.name + PART)
    left = f'{part} is left of a recording: run python -m embodied_kv.data.repair {part}'
    if part.exists():
        parser.error(left)
    try:
        record(task, told.out, told.episodes, told.seed, told.size, told.compression)
    except RecordingFullError:
        parser.exit(
            1, f'{told.out} is full: record the other starts into another file, by --seed\n'
        )
    except KeyboardInterrupt:
        parser.exit(130)
    except (RuntimeError, OSError) as error:
        parser.exit(1, f'{error}\n' + (f'{left}\n' if part.exists() else ''))
