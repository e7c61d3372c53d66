"""Units of a policy's numbers, and their conversion to SI.

A policy may be trained in degrees, millimetres or fractions of a stroke; ROS uses SI. A number per
step is a difference between two actions; the time between two actions gives its value per second.
"""

from __future__ import annotations

import math

# unit: how many of it make one SI unit of its kind
POSITIONS = {'rad': 1.0, 'deg': 180 / math.pi, 'm': 1.0, 'mm': 1000.0, '1': 1.0}
VELOCITIES = {f'{unit}/s': number for unit, number in POSITIONS.items()}
STEPS = {f'{unit}/step': number for unit, number in POSITIONS.items()}
LINEAR = ('m', 'mm')  # of positions; those of velocities begin with them
UNITS = (*POSITIONS, *VELOCITIES, *STEPS)
TURN = 2 * math.pi


def per_si(unit: str, dt: float) -> float:
    """Return how many of a unit one SI unit of its kind is. dt: time (s) between two actions."""
    if unit in STEPS:
        return STEPS[unit] * dt
    return (POSITIONS | VELOCITIES)[unit]


def is_velocity(unit: str) -> bool:
    """Return whether a unit measures a change in time."""
    return unit not in POSITIONS


def unwrapped(angle: float, near: float) -> float:
    """Return the angle (rad) that equals `angle` modulo a turn and lies within pi of `near`."""
    return angle + TURN * round((near - angle) / TURN)
