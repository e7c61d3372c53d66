"""A scripted expert for TransferCube, with rules on the current positions; it keeps no state.

So every state has one right command, also after a disturbance, and a policy that learns from it
learns to recover. Run it: `.venv-aloha/bin/python examples/aloha/expert.py` prints how often it
passes the cube on, without rendering.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from two_arms import DT, SECONDS, TICKS, TwoArms

LAG = 0.04  # s, delay of an arm
SPEED, CAREFUL, TURN, GAIN = 0.3, 0.12, 2.0, 5.0  # m/s and rad/s at most; 1/s
OPEN, CLOSED = 0.057, 0.021  # m, positions of a finger
MEET = np.array([0.0, 0.5, 0.25])  # m: where the cube is passed on
PITCH = math.radians(65)  # of the right hand, below the horizontal
ABOVE, BESIDE, BACK = 0.07, 0.08, 0.1  # m: over the cube; left hand waits; goes back
NEAR, AT, THERE = 0.013, 0.012, 0.03  # m, tolerances: lateral; to close; of MEET
ASKEW = 0.15  # rad, largest misalignment to go down


def command(arms: TwoArms) -> np.ndarray:
    """Return the command for one period later: [14] rad and m."""
    return np.append(_towards(arms, 'left', _left(arms)), _towards(arms, 'right', _right(arms)))


# Wanted position (m) and rotation of a hand, its fingers (m), and its speed limit (m/s).
Wish = tuple[np.ndarray, np.ndarray, float, float]


def _right(arms: TwoArms) -> Wish:
    hand, turned = arms.hand('right')
    cube, sides = arms.cube
    aim = _down(sides)
    if arms.holds('left'):
        free = arms.joints[13] > 0.9 * OPEN
        return (hand - 0.1 * turned[:, 0] if free else hand), turned, OPEN, SPEED
    if arms.holds('right'):
        return hand + MEET - cube, _down(np.eye(3)), CLOSED, SPEED
    aside = float(np.hypot(*(cube - hand)[:2]))
    height = float(hand[2] - cube[2])
    if aside < NEAR and abs(height) < AT:
        return cube, aim, CLOSED, SPEED
    if aside < NEAR + 0.1 * max(height, 0.0) and np.linalg.norm(_turn(turned, aim)) < ASKEW:
        return cube, aim, OPEN, SPEED
    over = ABOVE if aside > 0.03 or height > 0.03 else max(height, 0.03)
    return cube + [0.0, 0.0, over], aim, OPEN, SPEED


def _left(arms: TwoArms) -> Wish:
    hand, _ = arms.hand('left')
    cube, _ = arms.cube
    aim = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    if arms.holds('left'):
        alone = arms.touches('right') == 0
        return (MEET - [BACK, 0.0, 0.0] if alone else hand), aim, CLOSED, SPEED
    beside = MEET - [BESIDE, 0.0, 0.0]
    if not arms.holds('right') or np.linalg.norm(cube - MEET) > THERE:
        return beside, aim, OPEN, SPEED
    aside, before = float(np.hypot(*(cube - hand)[1:])), float(cube[0] - hand[0])
    if aside > (NEAR if before > 0.03 else 1.5 * NEAR):
        return cube - [max(before, 0.05), 0.0, 0.0], aim, OPEN, CAREFUL
    return cube, aim, CLOSED if abs(before) < AT else OPEN, CAREFUL


def _down(sides: np.ndarray) -> np.ndarray:
    """Return the rotation [3, 3] of the right hand, its fingers at the sides of the cube."""
    upright = int(np.argmax(np.abs(sides[2])))  # the cube may have rolled
    side = sides[:, (upright + 1) % 3]
    quarter = math.pi / 2
    yaw = (math.atan2(side[1], side[0]) + quarter / 2) % quarter - quarter / 2
    ahead = -np.array([math.cos(yaw), math.sin(yaw), 0.0])
    across = np.array([-ahead[1], ahead[0], 0.0])
    ahead = ahead * math.cos(PITCH) - [0.0, 0.0, math.sin(PITCH)]
    return np.column_stack([ahead, across, np.cross(ahead, across)])


def _turn(now: np.ndarray, aim: np.ndarray) -> np.ndarray:
    """Return the small rotation from `now` to `aim`, [3] rad in the world's axes."""
    return 0.5 * np.cross(now, aim, axisa=0, axisb=0).sum(axis=0)


def _within(vector: np.ndarray, most: float) -> np.ndarray:
    return vector * min(1.0, most / max(float(np.linalg.norm(vector)), 1e-9))


def _towards(arms: TwoArms, arm: str, wish: Wish) -> np.ndarray:
    """Return the arm's joints [7] one period on the way to a wish, by damped least squares."""
    (hand, turned), (target, aim, finger, speed) = arms.hand(arm), wish
    ahead = TICKS * DT + LAG
    go = ahead * _within(GAIN * (target - hand), speed)
    turn = ahead * _within(GAIN * _turn(turned, aim), TURN)
    jacobian = arms.jacobian(arm)
    inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + 1e-4 * np.eye(6))
    own = slice(0, 6) if arm == 'left' else slice(7, 13)
    rates = inverse @ np.concatenate([go, turn])
    told = arms.joints[own] + arms.sag[own] + np.clip(rates, -0.35, 0.35)
    return np.append(told, finger)


def passes(arms: TwoArms, seed: int) -> float:
    """Return the time (s) until the left hand holds the cube, 0 if it does not in time."""
    arms.reset(seed)
    while arms.steps * DT < SECONDS:
        arms.step(command(arms))
        if arms.is_passed:
            return arms.steps * DT
    return 0.0


def main() -> None:
    """Parse the command line and count the expert's successes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--starts', type=int, default=50)
    parser.add_argument('--seed', type=int, default=1_000_000, help='of the first start')
    told = parser.parse_args()
    arms = TwoArms(size=0)
    took = [passes(arms, told.seed + i) for i in range(told.starts)]
    done = [seconds for seconds in took if seconds]
    for seed in (told.seed + i for i, seconds in enumerate(took) if not seconds):
        print(f'start {seed}: not passed on within {SECONDS:g} s')
    print(f'passed on from {len(done)} of {len(took)} starts', end='')
    print(f', in {np.mean(done):.1f} s' if done else '')


if __name__ == '__main__':
    main()
