"""Units of a policy's numbers, and what they are in SI.

Knows no robot: a policy was trained in degrees, millimetres or shares of a stroke, and ROS speaks
SI. A number per step is a difference between two actions: what it is per second, dt says.
"""

from __future__ import annotations

import math

# unit: how many of it make one SI unit of its kind
POSITIONS = {'rad': 1.0, 'deg': 180 / math.pi, 'm': 1.0, 'mm': 1000.0, '1': 1.0}
VELOCITIES = {
    'rad/s': 1.0,
    'deg/s': 180 / math.pi,
    'm/s': 1.0,
    'mm/s': 1000.0,
    '1/s': 1.0,
}
STEPS = {
    'rad/step': 1.0,
    'deg/step': 180 / math.pi,
    'm/step': 1.0,
    'mm/step': 1000.0,
    '1/step': 1.0,
}
LINEAR = ('m', 'mm')  # of positions; those of velocities begin with them
UNITS = (*POSITIONS, *VELOCITIES, *STEPS)


def per_si(unit: str, dt: float) -> float:
    """How many of `unit` one SI unit is: of a position, or of a velocity. dt: s of a step."""
    if unit in STEPS:
        return STEPS[unit] * dt
    return (POSITIONS | VELOCITIES)[unit]


def is_velocity(unit: str) -> bool:
    """Whether it measures a change in time."""
    return unit not in POSITIONS
