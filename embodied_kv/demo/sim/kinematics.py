"""The arm's joints and lengths, and its kinematics in closed form.

Frames: x forward, y left, z up, origin on the table under the arm's base. With all joints at zero
the arm is an upside-down L: upper arm up, forearm forward, gripper down.

With Ry, Rx, Rz right-handed rotations and q the joints, the gripper point (between the
fingertips) is

    p = Rz(q0) (S + Ry(q1) (U + Ry(q2) (F + Rx(q3) Ry(q4) T)))
    S = (0, 0, SHOULDER), U = (0, 0, UPPER_ARM), F = (FOREARM, 0, 0), T = (0, 0, -TOOL)

The last hinge turns the gripper about T. With q3 = 0 and q1 + q2 + q4 = 0 it points straight down,
and its yaw is q0 + q5: the fingers then close along (-sin yaw, cos yaw, 0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

JOINTS = (
    'shoulder_pan',
    'shoulder_lift',
    'elbow',
    'forearm_roll',
    'wrist_pitch',
    'wrist_roll',
    'gripper',
)
SHOULDER, UPPER_ARM, FOREARM, TOOL = 0.20, 0.34, 0.34, 0.16  # m
LOWER = (-2.6, -1.4, -1.5, -3.1, -1.9, -3.2, 0.0)
UPPER = (2.6, 1.5, 1.7, 3.1, 1.9, 3.2, 0.04)  # rad; the gripper's is one finger's opening in m


def joint_limits() -> tuple[np.ndarray, np.ndarray]:
    """Return (lower, upper), each float32 [7] in the order of JOINTS: rad, m for the gripper."""
    return np.array(LOWER, np.float32), np.array(UPPER, np.float32)


def _turn(angle: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rotate the plane (a, b) from a towards b."""
    cos, sin = np.cos(angle), np.sin(angle)
    return cos * a - sin * b, sin * a + cos * b


def forward(joints: np.ndarray) -> np.ndarray:
    """Return gripper points [N, 3] (m) of joint vectors [N, 7] or [N, 6]: the equation above."""
    pan, lift, elbow, roll, pitch = np.asarray(joints, np.float64).T[:5]
    zero = np.zeros_like(pan)
    z, x = _turn(pitch, zero - TOOL, zero)
    y, z = _turn(roll, zero, z)
    z, x = _turn(elbow, z, x + FOREARM)
    z, x = _turn(lift, z + UPPER_ARM, x)
    x, y = _turn(pan, x, y)
    return np.stack([x, y, z + SHOULDER], -1)


def top_down(points: ArrayLike, yaw: np.ndarray | float = 0.0) -> np.ndarray:
    """Return arm joints [N, 6] with the gripper at points [N, 3] (m), straight down, elbow up.

    yaw: [N] rad of the gripper about z, modulo a full turn. Inverts `forward` by the law of
    cosines in the plane of the arm. Raises ValueError for a point out of reach.
    """
    joints, cos = _solve(points, yaw)
    if not (np.abs(cos) <= 1).all():
        worst = int(np.argmax(np.nan_to_num(np.abs(cos), nan=np.inf)))
        x, y, z = np.atleast_2d(points)[worst]
        raise ValueError(f'the arm does not reach ({x:.3f}, {y:.3f}, {z:.3f}) m from above')
    return joints


def reaches(points: np.ndarray) -> np.ndarray:
    """Return whether the gripper reaches points [N, 3] (m) straight down, within limits: bool [N].

    The yaw is irrelevant: the last hinge covers more than a full turn.
    """
    joints, cos = _solve(points, 0.0)
    within = (np.array(LOWER[:5]) <= joints[:, :5]) & (joints[:, :5] <= np.array(UPPER[:5]))
    return (np.abs(cos) <= 1) & within.all(1)


def _solve(points: ArrayLike, yaw: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Return joints [N, 6] as `top_down`, and the cosine [N] at the shoulder of its triangle.

    Beyond 1 there is no triangle, and the joints are meaningless. NaN for a point of NaN.
    """
    x, y, z = np.atleast_2d(np.asarray(points, np.float64)).T
    pan = np.arctan2(y, x)
    r, h = np.hypot(x, y), z + TOOL - SHOULDER  # wrist seen from the shoulder
    reach = np.maximum(np.hypot(r, h), 1e-9)
    cos = (reach**2 + UPPER_ARM**2 - FOREARM**2) / (2 * reach * UPPER_ARM)
    lift = np.arctan2(r, h) - np.arccos(np.clip(cos, -1, 1))
    fall = np.arctan2(r - UPPER_ARM * np.sin(lift), h - UPPER_ARM * np.cos(lift))  # from vertical
    elbow = fall - lift - np.pi / 2
    roll = (yaw - pan + np.pi) % (2 * np.pi) - np.pi
    return np.stack([pan, lift, elbow, np.zeros_like(pan), -(lift + elbow), roll], -1), cos
