"""A gantry that slides to a square, as a robot other than the tabletop, and data sets of it."""

import io

import numpy as np
from PIL import Image

from embodied_kv.data.lerobot_writer import Frames, LeRobotWriter
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import of_text

TEXT = """
robot_type: gantry
fps: 20
chunk_size: 5

observations:
  top:
    channel: {topic: top/image, type: sensor_msgs/msg/Image}
  side:
    channel: {topic: side/image, type: sensor_msgs/msg/Image}
  observation.state:
    - channel: {topic: joint_states, type: sensor_msgs/msg/JointState}
      select: [position.slide, position.lift, position.turn, position.jaw]
      unit: rad
    - channel: {topic: joint_states, type: sensor_msgs/msg/JointState}
      select: [velocity.slide]
      unit: rad/s

actions:
  action:
    - channel: {topic: joint_trajectory, type: trajectory_msgs/msg/JointTrajectory}
      select: [position.slide, position.lift, position.turn, position.jaw]
      unit: rad
      relative: [true, true, false, false]

limits:
  slide: {position: [-2.0, 2.0], velocity: 3.0, acceleration: 9.0}
  lift: {position: [-2.0, 2.0], velocity: 3.0, acceleration: 9.0}
  turn: {position: [-2.0, 2.0], velocity: 3.0, acceleration: 9.0}
  jaw: {position: [-2.0, 2.0], velocity: 3.0, acceleration: 9.0}
"""
CONTRACT = of_text(TEXT, 'gantry.yaml')
ROBOT = Embodiment.of(CONTRACT)
SIZES = {'top': (24, 32), 'side': (40, 40)}  # height, width
CLOSED = 0.8  # rad, of the jaw


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, 'PNG')
    return stream.getvalue()


def episode(seed, length=12, knowing=True, speaking=False):
    """Return an episode: the slide moves to the square; the jaw closes in the last frame."""
    rng = np.random.default_rng(seed)
    square = rng.uniform(-1, 1)
    slide = square * np.minimum(1, np.arange(length + 1) / (length - 4))
    state = np.zeros((length, 5))
    state[:, 0], state[:, 4] = slide[:-1], np.diff(slide) * 20
    state[:, 1] = rng.uniform(-0.1, 0.1, length)
    action = np.zeros((length, 4))
    action[:, 0], action[:, 1], action[-1, 3] = slide[1:], state[:, 1], CLOSED
    images, pixels = {}, {}
    for view, (height, width) in SIZES.items():
        column, row = (square + 1) / 2 * (width - 8) + 4, height / 2
        picture = rng.integers(0, 40, (height, width, 3)).astype(np.uint8)
        picture[int(row) - 3 : int(row) + 3, int(column) - 3 : int(column) + 3] = 220, 40, 30
        images[view] = [png(picture)] * length
        pixels[view, 'red square'] = np.full((length, 2), (column, row), np.float32)
    positions = {'red square': np.full((length, 3), (0.4 * square, 0.1, 0.8), np.float32)}
    more = dict(positions=positions, pixels=pixels) if knowing else {}
    if speaking:
        more['subtasks'] = ['slide to the square'] * (length - 1) + ['close the jaw']
    return Frames(
        task='slide_to the red square',
        state=state,
        action=action,
        interventions=np.zeros(length, bool),
        images=images,
        **more,
    )


def write(root, episodes):
    writer = LeRobotWriter(root, ROBOT)
    for one in episodes:
        writer.add(one)
    writer.finish()
    return root
