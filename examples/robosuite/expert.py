"""A scripted expert for Lift, with rules on the current positions; it keeps no state.

So every state has one right command, also after a disturbance, and a policy that learns from it
learns to recover. Run it: `.venv-robosuite/bin/python examples/robosuite/expert.py` prints how
often it lifts the cube, without rendering.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from panda_lift import FPS, OPEN, STIFFNESS, PandaLift

SECONDS = 10.0  # of an episode, at most
LAG = 2 / math.sqrt(STIFFNESS)  # s, delay of a critically damped arm
ABOVE, UP = 0.07, 0.15  # m: over the cube, where the hand turns; over the table, at the end
GAIN, SPEED, TURN = 4.0, 0.25, 1.2  # 1/s; m/s and rad/s at most
REST = np.array([0.0, 0.2, 0.0, -2.62, 0.0, 2.94, 0.785])  # rad, preferred posture
NEAR, AT = 0.015, 0.01  # m, tolerances: lateral, to go down; to close
ASKEW = 0.12  # rad, largest misalignment to go down


def command(lift: PandaLift) -> tuple[np.ndarray, float]:
    """Return the current command: joints [7] rad, finger m."""
    hand, turned = lift.hand_pose
    cube, sides = lift.cube_pose
    aim, error = _upright(turned, sides)
    aside = float(np.hypot(*(cube - hand)[:2]))
    height = float(hand[2] - cube[2])
    if lift.is_grasped:
        target, finger = np.array([*hand[:2], lift.table + UP]), 0.0
    elif aside < NEAR and abs(height) < AT:
        target, finger = cube, 0.0
    elif aside < NEAR + 0.1 * max(height, 0.0) and error < ASKEW:
        target, finger = cube, OPEN
    else:
        over = ABOVE if aside > 0.03 or height > 0.03 else max(height, 0.03)
        target, finger = cube + [0.0, 0.0, over], OPEN
    velocity = np.concatenate(
        [_within(GAIN * (target - hand), SPEED), _within(GAIN * _turn(turned, aim), TURN)]
    )
    return lift.joints + LAG * _rates(lift, velocity), finger


def _upright(turned: np.ndarray, sides: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the nearest pose of a hand that points down, and the angle (rad) to it.

    Its fingers are at the sides of the cube.
    """
    now = math.atan2(turned[1, 1], turned[0, 1])
    upright = int(np.argmax(np.abs(sides[2])))  # the cube may have rolled
    side = sides[:, (upright + 1) % 3]
    quarter = math.pi / 2
    off = (math.atan2(side[1], side[0]) - now + quarter / 2) % quarter - quarter / 2
    across = np.array([math.cos(now + off), math.sin(now + off), 0.0])
    down = np.array([0.0, 0.0, -1.0])
    return np.column_stack([np.cross(across, down), across, down]), abs(off)


def _turn(now: np.ndarray, aim: np.ndarray) -> np.ndarray:
    """Return the small rotation from `now` to `aim`, [3] rad in the world's axes."""
    return 0.5 * np.cross(now, aim, axisa=0, axisb=0).sum(axis=0)


def _within(vector: np.ndarray, most: float) -> np.ndarray:
    return vector * min(1.0, most / max(float(np.linalg.norm(vector)), 1e-9))


def _rates(lift: PandaLift, velocity: np.ndarray) -> np.ndarray:
    """Return the joints' rad/s for the hand's velocity, by damped least squares.

    The remaining freedom moves the arm towards REST.
    """
    jacobian = lift.jacobian()
    inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + 1e-4 * np.eye(6))
    idle = np.eye(7) - inverse @ jacobian
    return inverse @ velocity + idle @ (0.5 * (REST - lift.joints))


def lifts(lift: PandaLift, seed: int) -> int:
    """Return the steps until the cube is lifted, 0 if it is not in time."""
    lift.reset(seed)
    while lift.steps < SECONDS * FPS:
        lift.step(*command(lift))
        if lift.is_lifted:
            return lift.steps
    return 0


def main() -> None:
    """Parse the command line and count the expert's successes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--starts', type=int, default=50)
    parser.add_argument('--seed', type=int, default=1_000_000, help='of the first start')
    told = parser.parse_args()
    lift = PandaLift(size=0)
    took = [lifts(lift, told.seed + i) for i in range(told.starts)]
    done = [steps for steps in took if steps]
    for seed in (told.seed + i for i, steps in enumerate(took) if not steps):
        print(f'start {seed}: not lifted within {SECONDS:g} s')
    print(f'lifted from {len(done)} of {len(took)} starts', end='')
    print(f', in {np.mean(done) / FPS:.1f} s' if done else '')


if __name__ == '__main__':
    main()
