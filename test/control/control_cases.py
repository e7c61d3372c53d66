"""Limits, chunks, hypothesis strategies and checks that tests of this folder share."""

import numpy as np
from hypothesis import strategies as st

from embodied_kv.control.command import Measured
from embodied_kv.control.limits import Limits
from embodied_kv.control.trajectory_executor import TrajectoryExecutor
from embodied_kv.types import ActionChunk

NEAR = 1e-5  # tolerance of a limit, because nodes are at whole microseconds


def limits(joints=2, lower=-10.0, upper=10.0, velocity=50.0, acceleration=1e4, kinds='position'):
    """Return limits, equal for all joints or one for each; by default very wide."""
    each = [np.broadcast_to(v, joints) for v in (lower, upper, velocity, acceleration)]
    return Limits([f'joint_{i}' for i in range(joints)], *each, np.broadcast_to(kinds, joints))


def chunk(values, dt=0.1, sequence=7, deadline=0.0, stamp=0, **others):
    """Return a chunk of values [n, joints]."""
    values = np.asarray(values, np.float32)
    return ActionChunk(values, dt, stamp, deadline, sequence, 10, 1.0, 2.0, **others)


@st.composite
def any_limits(draw, joints=2, kinds=('position', 'velocity')):
    """Generate limits of slow and fast, wide and narrow joints, with some unbounded velocities."""

    def number(low, high):
        return draw(st.floats(low, high))

    columns = []
    for _ in range(joints):
        kind, lower = draw(st.sampled_from(kinds)), number(-3, 3)
        upper = lower + number(0.05, 4)
        if kind == 'velocity' and draw(st.booleans()):
            lower, upper = -np.inf, np.inf
        columns.append((lower, upper, number(0.05, 8), number(0.3, 100), kind))
    *numbers, kinds = zip(*columns, strict=True)
    return Limits([f'joint_{i}' for i in range(joints)], *numbers, kinds)


def inside(limits, share):
    """Return the position [joints] at shares [joints] of the range; 0 is the lower limit."""
    lower, upper = (np.clip(side, -5, 5) for side in (limits.lower, limits.upper))
    return lower + np.asarray(share) * (upper - lower)


def assert_feasible(motion, limits, outside=False):
    """Assert that a motion keeps the limits at every moment and ends at rest.

    outside: Whether the start may be outside the position limits.
    """
    steps = np.diff(motion.times)
    assert motion.times[0] == 0 and (steps >= 0.9e-6).all()
    assert (motion.velocities[-1] == 0).all()
    if len(steps):
        rates = np.abs(np.diff(motion.velocities, axis=0)) / steps[:, None]
        assert (rates <= limits.acceleration * (1 + 1e-9)).all()
    times = np.unique(np.append(motion.times, np.linspace(0, motion.duration, 400)))
    positions, velocities = motion.sample(times)
    assert (np.abs(velocities) <= limits.velocity * (1 + 1e-9)).all()
    beyond = np.maximum(positions - limits.upper, limits.lower - positions)
    beyond = np.maximum(beyond, 0.0)
    if outside:  # it never moves further out
        assert (np.diff(beyond, axis=0) <= NEAR).all()
    else:
        assert beyond.max() <= NEAR
    # By this equation, a cubic spline has constant acceleration between nodes, as the motion.
    ways = (motion.velocities[1:] + motion.velocities[:-1]) / 2 * steps[:, None]
    np.testing.assert_allclose(np.diff(motion.positions, axis=0), ways, atol=1e-12)


def seen(moment, *position):
    """Return a measurement of an arm at rest; by default of two joints at 0."""
    position = np.array(position or (0.0, 0.0))
    return Measured(position, moment, np.zeros(len(position)))


def make_executor(limits=None, **options):
    """Return an executor for two joints with very wide limits and tolerances."""
    options = dict(dt=0.1, max_tracking_error=np.inf, max_joint_state_age=0.5) | options
    return TrajectoryExecutor(make_limits() if limits is None else limits, **options)


make_limits = limits
