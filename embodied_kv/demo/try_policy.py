"""`python -m embodied_kv try`: one chunk of actions and one sentence for a picture.

The command uses the bundled policy of the simulated robot, without ROS 2, simulator and compiled
code. By default the arm is at the start of the simulated robot, over an empty table; `--joints`
and `--wrist` set another state.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch

from embodied_kv.demo.draw_path import draw_path
from embodied_kv.demo.sim.camera import axes_towards, project
from embodied_kv.demo.sim.kinematics import JOINTS, UPPER, forward, top_down
from embodied_kv.demo.sim.scene import FRONT_EYE, FRONT_FOVY, FRONT_TARGET, START
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.load import load_policy
from embodied_kv.types import ActionChunk, Observation

PROMPT = 'Subtask:'
EMPTY = Path(__file__).parent / 'assets' / 'try' / 'wrist.png'  # the view at the start
SMALLEST = 512  # pixels of the written picture's longer side, at least


@dataclass(frozen=True, eq=False)
class Answer:
    """The output of the policy for a picture. joints: [7], at which the chunk starts."""

    chunk: ActionChunk
    sentence: str
    joints: np.ndarray


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('picture', type=Path, help='of the front camera: PNG or JPEG')
    parser.add_argument('instruction', help="such as 'pick up the red cube'")
    parser.add_argument(
        '--wrist',
        type=Path,
        default=EMPTY,
        help='picture of the wrist camera; of an empty table by default',
    )
    parser.add_argument(
        '--joints',
        type=float,
        nargs=len(JOINTS),
        metavar=tuple(JOINTS),
        help='rad, and m for the gripper; the start of the simulated robot by default',
    )
    parser.add_argument('--prompt', default=PROMPT, help=f"question to the policy ('{PROMPT}')")
    parser.add_argument('--out', type=Path, default=Path('try.png'), help='picture to write')


def main(arguments: argparse.Namespace) -> None:
    """Run the command. Exits with 1 and the reason where an input cannot be used."""
    try:
        image = read_picture(arguments.picture)
        wrist = read_picture(arguments.wrist)
        joints = np.array(arguments.joints or start(), np.float32)
        answer = ask(image, wrist, joints, arguments.instruction, arguments.prompt)
        write_picture(arguments.out, with_path(image, answer))
    except (ValueError, OSError) as error:
        sys.exit(f'try: {error}')
    chunk = answer.chunk
    tip = forward(np.stack([joints, chunk.values[-1]]))
    moved = np.linalg.norm(tip[1] - tip[0])
    seconds = len(chunk.values) * chunk.dt
    print(f'{arguments.prompt} {answer.sentence}')
    print(f'actions: {len(chunk.values)} in {seconds:.1f} s; the gripper moves {moved:.2f} m')
    print(f'path of the gripper: {arguments.out}')
    print(f'prefill {chunk.prefill_ms:.0f} ms, denoising {chunk.denoise_ms:.0f} ms')


def start() -> list[float]:
    """Return the joints [7] with which the simulated robot starts, with an open gripper."""
    return [*top_down(np.array(START))[0].tolist(), UPPER[-1]]


def read_picture(path: Path) -> np.ndarray:
    """Return uint8 [H, W, 3] RGB. Raises OSError, and ValueError where it is no picture."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    image = cv2.imdecode(data, cv2.IMREAD_COLOR) if len(data) else None
    if image is None:
        raise ValueError(f'picture must be a PNG or JPEG file (got {path}); convert it')
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def write_picture(path: Path, image: np.ndarray) -> None:
    """Write uint8 [H, W, 3] RGB. Raises OSError, and ValueError for a name without a format."""
    try:
        encoded = cv2.imencode(path.suffix or '.', cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1]
    except cv2.error as error:
        raise ValueError(f'out must end with .png or .jpg (got {path})') from error
    path.write_bytes(encoded.tobytes())


def ask(
    image: np.ndarray,
    wrist: np.ndarray,
    joints: np.ndarray,
    instruction: str,
    prompt: str,
) -> Answer:
    """Return the chunk and the sentence of the bundled policy, from one prefill.

    Args:
        image: The picture of the front camera, uint8 [H, W, 3] RGB.
        wrist: The picture of the wrist camera, uint8 [H, W, 3] RGB.
        joints: The measured joints [7] (rad, and m for the gripper).
        instruction: The instruction of the robot.
        prompt: The question of the sentence.

    Raises:
        ValueError: An input does not fit the policy.
    """
    settings = EngineConfig(rows=3, streams=1, time_budget=False, compressed_rows=0, compile='off')
    torch.set_num_threads(settings.threads)
    policy = load_policy(Embodiment.load('tabletop'), 'tabletop', '', settings, _no_log, _no_log)
    engine = Engine(policy, settings)
    observation = Observation(
        images=(image, wrist),
        state=joints,
        instruction=instruction,
        stamp=0,
        deadline=math.inf,
        sequence=0,
    )
    handle = engine.prefill([observation])[0]
    engine.open(handle, prompt)
    with engine.kv.acquire(handle) as lease:
        chunk = engine.denoise([lease], [math.inf])[0]
    if isinstance(chunk, FloatingPointError):
        raise ValueError(str(chunk))
    return Answer(chunk, _sentence(engine), joints)


def with_path(image: np.ndarray, answer: Answer) -> np.ndarray:
    """Return the picture, enlarged to at least SMALLEST pixels, with the path of the gripper."""
    scale = max(1, math.ceil(SMALLEST / max(image.shape[:2])))
    image = np.repeat(np.repeat(image, scale, 0), scale, 1)
    height, width = image.shape[:2]
    size = max(height, width)  # the policy sees the picture in the centre of a square
    path = forward(np.concatenate([answer.joints[None], answer.chunk.values]))
    axes = axes_towards(FRONT_EYE, FRONT_TARGET)
    pixels = project(path, FRONT_EYE, axes, FRONT_FOVY, size)
    draw_path(image, pixels - ((size - width) / 2, (size - height) / 2))
    return image


def _sentence(engine: Engine) -> str:
    text = ''
    while True:
        for delta in engine.decode():
            text += delta.text
            if delta.reason:
                return text.strip()


def _no_log(line: str) -> None:
    pass
