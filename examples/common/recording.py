"""An expert's episodes as recordings, as the node recorder writes them: MCAP, for `data.export`.

The command that is recorded is the expert's; the joints are told something else where they are
disturbed, so that what the expert does then is in the data too. Time is the simulation's.
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
GAP = 1  # s from an episode to the next
MOST = 2**34  # bytes of a recording
WANDERS, KICKED = 0.3, 0.25  # s: how fast a wandering changes, how long a kick lasts

HOW = {
    'calm': 'share of episodes without disturbances',
    'wander': 'rad that joints wander',
    'kick': 'rad of a kick',
    'often': 'kicks in a second',
}
Moments = list[tuple[dict, np.ndarray]]  # what was seen, and the command then, SI [J]


@dataclass(frozen=True)
class Disturbed:
    """How joints are told something else than they were commanded. places: of these joints.

    calm: the share of episodes without. wander, kick: rad, how far; often: kicks in a second.
    """

    places: tuple[int, ...]
    calm: float
    wander: float
    kick: float
    often: float

    def pushes(self, rng: np.random.Generator, joints: int, dt: float) -> Iterator[np.ndarray]:
        """[joints] rad of each step of an episode: none, or a wandering with kicks."""
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
    """What is done by whom. done: how that is called; longest: s of an episode at most.

    open: a world with pictures of so many pixels.
    """

    robot: Embodiment
    instruction: str
    done: str
    longest: float
    disturbed: Disturbed
    open: Callable[[int], AbstractContextManager[World]]


class Episodes:
    """One recording, in simulated time. compression: of pictures, as of the recorder."""

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
        """An episode. Raises RecordingFullError, OSError."""
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
        """Nothing more comes. end: why. Raises OSError."""
        self._file.finish({'end': end})

    def abandon(self) -> None:
        """After OSError: what is whole is left for `data.repair`."""
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
        """Where the cube is: m in a frame that stays, and columns and rows in its pictures."""
        (x, y, z), pixels = seen['cube'].tolist(), seen['pixels']
        places = {TRUTH: (x, y, z)}
        places |= {f'{TRUTH}/{view}': (*at.tolist(), 0.0) for view, at in pixels.items()}
        for topic, (x, y, z) in places.items():
            message = PointStamped()
            message.point.x, message.point.y, message.point.z = x, y, z
            self._put(topic, message)

    def _command(self, number: int, command: np.ndarray) -> None:
        """The chunk of a policy that looks one action ahead, and what controllers are told."""
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
    """What was seen and commanded until the task was done; None where it was not in time."""
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
    """The file is whole in the end, and says why it ends; a disk that refuses leaves its part."""
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
    """`count` episodes into a file; the starts are seeds from `first` on.

    Raises RuntimeError, OSError, RecordingFullError; what came before is in the file.
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
    """The command. episodes: where none are told."""
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
