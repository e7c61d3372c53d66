"""Return the limits and tolerances of a robot from its contract and its robot_description."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control.limits import POSITION, VELOCITY, LimitError, Limits, linear_in_urdf
from embodied_kv.control.trajectory_executor import Confine
from embodied_kv.control.workspace import Workspace
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import Dimension
from embodied_kv.robots.sources import is_joint
from embodied_kv.robots.units import LINEAR


def limits_from_contract(robot: Embodiment, robot_description: str) -> Limits:
    """Return the limits of every output, in the order of an action.

    A continuous joint has no position limits, unless the URDF declares it continuous and the
    contract bounds it. Then the limits of the contract hold in unwrapped radians, and
    `Limits.continuous` stays true, because its driver may still publish the angle wrapped.

    Args:
        robot: The robot.
        robot_description: Its URDF, or '' without one.

    Raises:
        LimitError: if a limit is missing, or wider than that of the URDF.
    """
    dimensions, contract = robot.actions.dimensions, robot.contract
    joints = tuple(d.axis for d in dimensions)
    kinds = [VELOCITY if d.is_velocity else POSITION for d in dimensions]
    given = [contract.limits[d.axis] for d in dimensions]
    endless = (-math.inf, math.inf)
    positions = [
        of.position if is_joint(d.select) and not of.continuous else endless
        for of, d in zip(given, dimensions, strict=True)
    ]
    lower = [None if p is None else p[0] for p in positions]
    upper = [None if p is None else p[1] for p in positions]
    velocity = [of.velocity for of in given]
    continuous = [of.continuous for of in given]
    acceleration = [of.acceleration for of in given]
    if robot_description:
        return Limits.from_urdf(
            robot_description,
            joints,
            kinds,
            acceleration,
            lower=lower,
            upper=upper,
            velocity=velocity,
            continuous=continuous,
        )
    for values, what in ((lower, 'position'), (velocity, 'velocity')):
        if None in values:
            raise LimitError(
                f'limits.{joints[values.index(None)]}.{what} is missing; write it in the '
                'contract, or give the parameter robot_description'
            )
    return Limits(
        joints,
        lower=np.asarray(lower),
        upper=np.asarray(upper),
        velocity=np.asarray(velocity),
        acceleration=np.asarray(acceleration),
        kinds=tuple(kinds),
        continuous=np.asarray(continuous),
    )


def confine_from_contract(robot: Embodiment, robot_description: str, limits: Limits) -> Confine:
    """Return a function that ends motions before they leave the contract's workspace, if any.

    Raises:
        LimitError: if the contract has a workspace and there is no URDF.
        ValueError: as Workspace does.
    """
    box = robot.contract.workspace
    if box is None:
        return lambda motion: motion
    if not robot_description:
        raise LimitError(
            f'workspace of {box.frame} needs the kinematics of a URDF; give the parameter '
            'robot_description'
        )
    lower, upper = zip(box.x, box.y, box.z, strict=True)
    return Workspace(robot_description, box.frame, lower, upper, limits).confine


def tracking_errors(robot: Embodiment) -> NDArray[np.float64]:
    """Return the largest distance (rad or m) of each output from its reference: [joints].

    NaN where the executor derives the tolerance; inf for a gripper, which an object may block, and
    for an axis of a twist. A `tracking_error` in the contract takes precedence.
    """
    limits = robot.contract.limits
    return _distances(robot, {axis: limits[axis].tracking_error for axis in robot.axes})


def relative_targets(robot: Embodiment) -> NDArray[np.float64]:
    """Return the largest distance (rad or m) of a chunk's first action from the arm: [joints].

    NaN where the executor derives it; inf for a gripper, for a velocity and for an axis of a
    twist. A map in `max_relative_target` applies to the joints that it names; a number applies to
    every position joint of the arm.
    """
    given = robot.contract.max_relative_target
    if isinstance(given, Mapping):
        distances = _distances(robot, given)
    else:
        distances = _distances(robot, {})
        if given is not None:
            distances[np.isnan(distances)] = given
    return np.where([d.is_velocity for d in robot.actions.dimensions], math.inf, distances)


def linear_joints(robot: Embodiment, robot_description: str = '') -> NDArray[np.bool_]:
    """Return which outputs are linear (m) instead of rotary (rad): bool [joints].

    The unit of the action decides. For a unit without a dimension ('1') the URDF decides; without
    a URDF the joint counts as rotary.
    """
    urdf = linear_in_urdf(robot_description) if robot_description else {}
    return np.array([_is_linear(d, urdf) for d in robot.actions.dimensions])


def _is_linear(dimension: Dimension, urdf: Mapping[str, bool]) -> bool:
    unit = dimension.unit.partition('/')[0]
    if unit != '1':
        return unit in LINEAR
    return urdf.get(dimension.axis, dimension.axis.startswith('twist.linear.'))


def _distances(robot: Embodiment, given: Mapping[str, float | None]) -> NDArray[np.float64]:
    """Return given distances; else inf for grippers and axes of a twist, NaN for other joints."""
    distances = []
    for dimension in robot.actions.dimensions:
        axis = dimension.axis
        is_gripper = robot.contract.limits[axis].role == 'gripper'
        usual = math.inf if is_gripper or not is_joint(dimension.select) else math.nan
        value = given.get(axis)
        distances.append(usual if value is None else value)
    return np.array(distances, np.float64)
