"""Angles of continuous joints, which are the same place after a full turn."""

from __future__ import annotations

import math

TURN = 2 * math.pi


def unwrapped(angle: float, near: float) -> float:
    """Return the angle (rad) that equals `angle` modulo a turn and lies within pi of `near`."""
    return angle + TURN * round((near - angle) / TURN)
