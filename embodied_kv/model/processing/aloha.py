"""Conversion between ALOHA's joints and those of the base model: openpi's `adapt_to_pi`.

Source: policies/aloha_policy.py of openpi. Fourteen dims: six joints and a gripper, left arm, then
right. In the state the opening of a gripper becomes the angle of its motor; in actions angles
remain angles with another range. The two directions are not inverse to each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

DIMS = 14
SIGNS = np.array([1, -1, -1, 1, 1, 1, 1] * 2, np.float64)
GRIPPERS = [6, 13]
OPENING = 0.01844, 0.05800  # m: opening of the fingers, closed and open
ARM, HORN = 0.036, 0.022  # m: lengths in the gripper's linkage
ANGLE = 0.5476, 1.6296  # rad: motor angle at 0 and 1 of the base model
COMMAND = -0.6213, 1.4910  # rad: motor angle at 0 and 1 of ALOHA


def decode_state(state: ArrayLike) -> NDArray[np.float64]:
    """Return the base model's state [..., 14] of ALOHA's; the gripper is clipped to its range."""
    joints = SIGNS * np.asarray(state, np.float64)
    low, high = OPENING
    opening = joints[..., GRIPPERS] * (high - low) + low
    sine = (HORN**2 + opening**2 - ARM**2) / (2 * HORN * opening)
    joints[..., GRIPPERS] = _share(np.arcsin(np.clip(sine, -1.0, 1.0)), ANGLE)
    return joints


def encode_actions(actions: ArrayLike) -> NDArray[np.float64]:
    """Return ALOHA's actions [..., 14] of the base model's."""
    joints = SIGNS * np.asarray(actions, np.float64)
    joints[..., GRIPPERS] = _share(joints[..., GRIPPERS] + ANGLE[0], COMMAND)
    return joints


def decode_actions(actions: ArrayLike) -> NDArray[np.float64]:
    """Return the inverse of `encode_actions`."""
    joints = SIGNS * np.asarray(actions, np.float64)
    low, high = COMMAND
    joints[..., GRIPPERS] = joints[..., GRIPPERS] * (high - low) + low - ANGLE[0]
    return joints


def _share(x: NDArray, ends: tuple[float, float]) -> NDArray:
    """Return the position of x between two ends: 0 at the first, 1 at the second."""
    return (x - ends[0]) / (ends[1] - ends[0])
