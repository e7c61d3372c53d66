"""Bounded re-entry: how much of a capsule is resumed in a world that has changed since.

The computation is restored exactly, the world is not.

Source: Execution-State Capsules, section 6, bounded re-entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum

import numpy as np

from embodied_kv.capsule.facts import CapsuleError, Fact
from embodied_kv.errors import ErrorCode

SIDE = 16  # pixels of a thumbnail


class Depth(Enum):
    """How much is resumed, the deepest first.

    ACTOR: the leftover actions, and all of PLANNER. PLANNER: the context of the planner, with a
    present observation. HOLD: nothing; the robot holds its position.
    """

    ACTOR = 'actor'
    PLANNER = 'planner'
    HOLD = 'hold'

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, eq=False)
class SceneSummary:
    """A small summary of the observation of a robot, stored in each capsule.

    Attributes:
        joints: float64 [J], rad, or m for a prismatic joint.
        images: uint8 [H, W] or [H, W, 3] by view, made by `thumbnail`.
        stamp: ns, of the observation.
    """

    joints: np.ndarray
    images: Mapping[str, np.ndarray]
    stamp: int
    robot: str = ''

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the tensors for a capsule: 'joints', and 'image/VIEW' for each view."""
        return {'joints': self.joints, **{f'image/{v}': i for v, i in self.images.items()}}

    def facts(self) -> dict[str, int | str]:
        return {'stamp': self.stamp, 'robot': self.robot}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], facts: Fact) -> SceneSummary:
        """Return the summary of `arrays` and `facts`. Raises CapsuleError for damaged ones."""
        images = {n.removeprefix('image/'): a for n, a in arrays.items() if n != 'joints'}
        stamp, robot = (
            facts.get(name) if isinstance(facts, Mapping) else None for name in ('stamp', 'robot')
        )
        if 'joints' not in arrays or type(stamp) is not int or not isinstance(robot, str):
            raise CapsuleError(
                'the capsule is damaged: its scene has no joints, stamp or robot',
                ErrorCode.DAMAGED,
            )
        return cls(arrays['joints'], images, stamp, robot)


@dataclass(frozen=True)
class Limits:
    """The largest differences at which a capsule is resumed. Raises ValueError.

    On the tabletop at 64 x 64 pixels, noise of 8 in 255 changes a thumbnail by 0.04, and 10% more
    light by 0.09. An object that moves 2 cm changes it by 0.12 to 0.54, and a joint that turns
    0.02 rad by about 0.15. Hence the default of max_image_change.

    Attributes:
        max_joint_distance: rad (m for a prismatic joint), of any joint.
        max_image_change: 0 to 1, of any pixel of a thumbnail.
        max_action_resume_age: s, for the state of the actor.
        max_planner_resume_age: s, for the context of the planner.
    """

    max_joint_distance: float = 0.05
    max_image_change: float = 0.1
    max_action_resume_age: float = 2.0
    max_planner_resume_age: float = 600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value >= 0:
                raise ValueError(f'{field.name} must not be negative (got {value})')
        if self.max_image_change > 1:
            raise ValueError(f'max_image_change must be from 0 to 1 (got {self.max_image_change})')
        if self.max_action_resume_age > self.max_planner_resume_age:
            raise ValueError(
                'max_action_resume_age must be at most max_planner_resume_age, '
                f'{self.max_planner_resume_age} s (got {self.max_action_resume_age} s); raise '
                'max_planner_resume_age'
            )


@dataclass(frozen=True)
class Decision:
    """A depth, and one sentence with the numbers that led to it."""

    depth: Depth
    reason: str


def thumbnail(image: np.ndarray) -> np.ndarray:
    """Reduce uint8 [H, W] or [H, W, 3] to [SIDE, SIDE] or [SIDE, SIDE, 3]: means of equal blocks.

    A block averages camera noise out, but is small enough to show an object that moved in it.
    Raises ValueError for a smaller image.
    """
    height, width = image.shape[:2]
    if min(height, width) < SIDE:
        raise ValueError(f'an image of {width} x {height} pixels has no {SIDE} x {SIDE} blocks')
    rows, columns = (np.arange(SIDE + 1) * size // SIDE for size in (height, width))
    sums = np.add.reduceat(image.astype(np.float64), rows[:-1], axis=0)
    sums = np.add.reduceat(sums, columns[:-1], axis=1)  # [SIDE, SIDE, ...]
    pixels = np.outer(np.diff(rows), np.diff(columns))
    return np.rint((sums.T / pixels.T).T).astype(np.uint8)


def choose_depth(then: SceneSummary | None, now: SceneSummary | None, limits: Limits) -> Decision:
    """Return how deep a capsule of scene `then` is re-entered in scene `now`; never raises.

    The state of the actor is resumed if joints, images and age are all within the limits. A larger
    difference never leads deeper.

    Args:
        then: None if the capsule has no scene.
        now: None if there is no recent observation.
        limits: The largest differences.
    """
    obstacle = next(_obstacles(then, now), None)
    if obstacle is not None:
        return Decision(Depth.HOLD, f'{obstacle}: the robot holds')
    assert then is not None and now is not None
    age = (now.stamp - then.stamp) / 1e9
    if age > limits.max_planner_resume_age:
        too_old = f'the capsule is {age:.4g} s old, more than {limits.max_planner_resume_age:g}'
        return Decision(Depth.HOLD, f'{too_old}: the robot holds')
    with np.errstate(over='ignore'):
        moved = np.abs(now.joints - then.joints)  # [J]
    joint = int(moved.argmax())
    changes = {view: image_change(then.images[view], now.images[view]) for view in now.images}
    view = max(changes, key=changes.__getitem__)
    measured = (
        (moved[joint], limits.max_joint_distance, f'joint {joint} has moved {moved[joint]:.4g}'),
        (
            changes[view],
            limits.max_image_change,
            f'the {view} image has changed {changes[view]:.4g}',
        ),
        (age, limits.max_action_resume_age, f'the capsule is {age:.4g} s old'),
    )
    over = [f'{text}, more than {limit:g}' for value, limit, text in measured if value > limit]
    if over:
        reason = f'{"; ".join(over)}: the planner goes on with the present observation'
        return Decision(Depth.PLANNER, reason)
    within = ', '.join(f'{text} of {limit:g}' for _, limit, text in measured)
    return Decision(Depth.ACTOR, f'{within}: the actor goes on')


def image_change(then: np.ndarray, now: np.ndarray) -> float:
    """Return the largest change of a pixel between two uint8 images of one shape, 0 to 1."""
    return int(np.abs(now.astype(np.int16) - then).max()) / 255


def _obstacles(then: SceneSummary | None, now: SceneSummary | None) -> Iterator[str]:
    """Yield the reasons why the scenes cannot be compared."""
    if now is None:
        yield 'there is no recent observation'
        return
    if then is None:
        yield 'the capsule has no summary of its scene'
        return
    for scene, whose in ((now, 'the observation'), (then, 'the capsule')):
        yield from _defects(scene, whose)
    if then.robot != now.robot:
        yield f'the capsule is of the robot {then.robot!r}, this is {now.robot!r}'
    if then.joints.shape != now.joints.shape:
        yield f'the capsule has {len(then.joints)} joints, the robot has {len(now.joints)}'
    if then.images.keys() != now.images.keys():
        yield f'the capsule has the views {_names(then)}, the observation has {_names(now)}'
    for view, image in now.images.items():
        if image.shape != then.images[view].shape:
            yield f'the {view} image is {image.shape}, in the capsule {then.images[view].shape}'
    if now.stamp < then.stamp:
        ahead = (then.stamp - now.stamp) / 1e9
        yield f'the observation is {ahead:.4g} s older than the capsule, by stamps'


def _defects(scene: SceneSummary, whose: str) -> Iterator[str]:
    joints = scene.joints
    if joints.ndim != 1 or not joints.size or joints.dtype.kind != 'f':
        yield f'{whose} has joints of shape {joints.shape}, {joints.dtype}, not of [J], float64'
        return
    for joint in np.flatnonzero(~np.isfinite(joints)):
        yield f'joint {joint} of {whose} must be finite (got {joints[joint]})'
    if not scene.images:
        yield f'{whose} has no image'
    for view, image in scene.images.items():
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or not image.size:
            yield f'{whose} has a {view} image of shape {image.shape}, {image.dtype}, not uint8'


def _names(scene: SceneSummary) -> str:
    return ', '.join(sorted(scene.images))
