"""Limits and tolerances of a robot, as its contract and its robot_description say them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control.limits import POSITION, VELOCITY, LimitError, Limits
from embodied_kv.control.trajectory_executor import Confine
from embodied_kv.control.workspace import Workspace
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.sources import is_joint


def limits_of(robot: Embodiment, robot_description: str) -> Limits:
    """Of every output, in the order of the action. robot_description: a URDF, '' for none.

    Raises LimitError where nobody says a limit, or both say otherwise.
    """
    dimensions, contract = robot.actions.dimensions, robot.contract
    joints = tuple(d.axis for d in dimensions)
    kinds = [VELOCITY if d.is_velocity else POSITION for d in dimensions]
    given = [contract.limits[d.axis] for d in dimensions]
    positions = [
        of.position if is_joint(d.select) else (-math.inf, math.inf)
        for of, d in zip(given, dimensions, strict=True)
    ]
    columns = {
        'lower': [None if p is None else p[0] for p in positions],
        'upper': [None if p is None else p[1] for p in positions],
        'velocity': [of.velocity for of in given],
    }
    acceleration = [of.acceleration for of in given]
    if not robot_description:
        for name, column in columns.items():
            if None in column:
                what = 'velocity' if name == 'velocity' else 'position'
                raise LimitError(
                    f'limits.{joints[column.index(None)]}.{what} is missing: write it in the '
                    'contract, or give the parameter robot_description'
                )
        return Limits(joints, **columns, acceleration=acceleration, kinds=kinds)
    return Limits.from_urdf(robot_description, joints, kinds, acceleration, **columns)


def confine_of(robot: Embodiment, robot_description: str, limits: Limits) -> Confine:
    """Ends motions before they leave the contract's workspace, if there is one.

    Raises LimitError without the URDF that it takes, ValueError as Workspace does.
    """
    box = robot.contract.workspace
    if box is None:
        return lambda motion: motion
    if not robot_description:
        raise LimitError(
            f'workspace: where {box.frame} is, only a URDF says: give the parameter '
            'robot_description'
        )
    lower, upper = zip(box.x, box.y, box.z, strict=True)
    return Workspace(robot_description, box.frame, lower, upper, limits).confine


def tracking_errors(robot: Embodiment) -> NDArray[np.float64]:
    """How far each output may be from where it was sent; inf where the contract does not say."""
    errors = (robot.contract.limits[axis].tracking_error for axis in robot.axes)
    return np.array([math.inf if error is None else error for error in errors])
