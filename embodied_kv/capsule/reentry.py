"""Bounded re-entry: how deep a restored session may go back into a world that went on.

It knows what was seen and felt when a capsule was taken, and what is now. It does not know
capsules, models or how to resume; the computation restores exactly, the world does not.

Source: Execution-State Capsules, section 6, bounded re-entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum

import numpy as np

from embodied_kv.capsule.facts import CapsuleError
from embodied_kv.errors import ErrorCode

SIDE = 16  # pixels of a thumbnail


class Depth(Enum):
    """How much is resumed, the deepest first.

    ACTOR: the leftover chunk and all below it. PLANNER: its context, with an observation of now.
    HOLD: nothing; the robot stays where it is.
    """

    ACTOR = 'actor'
    PLANNER = 'planner'
    HOLD = 'hold'

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, eq=False)
class SceneSummary:
    """What a robot saw and felt at one moment, small enough to go into each capsule.

    joints: float64 [J], rad, or m where a joint slides. images: uint8 [H, W] or [H, W, 3] by
    view, made by `thumbnail`. stamp: ns, as an observation's.
    """

    joints: np.ndarray
    images: Mapping[str, np.ndarray]
    stamp: int
    robot: str = ''

    def arrays(self) -> dict[str, np.ndarray]:
        """What belongs among a capsule's tensors: 'joints', and 'image/VIEW' for each view."""
        return {'joints': self.joints, **{f'image/{v}': i for v, i in self.images.items()}}

    def facts(self) -> dict[str, int | str]:
        """What belongs among its facts."""
        return {'stamp': self.stamp, 'robot': self.robot}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], facts: Mapping[str, int | str]) -> SceneSummary:
        """The summary that `arrays` and `facts` came from.

        Raises CapsuleError where they are of no summary.
        """
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
    """How much may differ. Raises ValueError for limits that mean nothing.

    max_joint_distance: rad (m where a joint slides), of any joint. max_image_change: 0 to 1, of
    any pixel of a thumbnail. max_age: s, for the actor's state. max_planner_age: s, for the
    planner's context.

    On the tabletop at 64 x 64 pixels, noise of 8 in 255 changes a thumbnail by 0.04 and a tenth
    more light by 0.09; a thing that moves 2 cm changes it by 0.12 to 0.54, the arm by about 0.15
    when a joint turns 0.02 rad. Hence the default of max_image_change.
    """

    max_joint_distance: float = 0.05
    max_image_change: float = 0.1
    max_age: float = 2.0
    max_planner_age: float = 600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value >= 0:
                raise ValueError(f'{field.name} must not be negative (got {value})')
        if self.max_image_change > 1:
            raise ValueError(f'max_image_change must be from 0 to 1 (got {self.max_image_change})')
        if self.max_age > self.max_planner_age:
            raise ValueError(
                f'max_age is {self.max_age} s, above max_planner_age of {self.max_planner_age} s: '
                'the state of the actor grows old before the context of the planner'
            )


@dataclass(frozen=True)
class Decision:
    """reason: one sentence, with the numbers that decided."""

    depth: Depth
    reason: str


def thumbnail(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W] or [H, W, 3] to [SIDE, SIDE] or [SIDE, SIDE, 3]: the means of equal blocks.

    A block averages a camera's noise away, yet is small enough that one thing moved in it shows.
    Raises ValueError for an image smaller than that.
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
    """How deep a capsule taken at `then` may be re-entered at `now`; never raises.

    then: None where the capsule has no scene. now: None where there is no fresh observation.
    The actor's state is resumed if joints, images and age are all within the limits; a larger
    distance never leads deeper.
    """
    obstacle = next(_obstacles(then, now), None)
    if obstacle is not None:
        return Decision(Depth.HOLD, f'{obstacle}: the robot holds')
    assert then is not None and now is not None
    age = (now.stamp - then.stamp) / 1e9
    if age > limits.max_planner_age:
        too_old = f'the capsule is {age:.4g} s old, more than {limits.max_planner_age:g}'
        return Decision(Depth.HOLD, f'{too_old}: the robot holds')
    with np.errstate(over='ignore'):
        moved = np.abs(now.joints - then.joints)  # [J]
    joint = int(moved.argmax())
    changes = {view: _change(then.images[view], now.images[view]) for view in now.images}
    view = max(changes, key=changes.__getitem__)
    measured = (
        (
            moved[joint],
            limits.max_joint_distance,
            f'joint {joint} has moved {moved[joint]:.4g}',
        ),
        (
            changes[view],
            limits.max_image_change,
            f'the {view} image has changed {changes[view]:.4g}',
        ),
        (age, limits.max_age, f'the capsule is {age:.4g} s old'),
    )
    over = [f'{text}, more than {limit:g}' for value, limit, text in measured if value > limit]
    if over:
        return Decision(
            Depth.PLANNER, f'{"; ".join(over)}: the planner goes on with what is seen now'
        )
    within = ', '.join(f'{text} of {limit:g}' for _, limit, text in measured)
    return Decision(Depth.ACTOR, f'{within}: the actor goes on')


def _change(then: np.ndarray, now: np.ndarray) -> float:
    """Of the pixel that changed most, 0 to 1."""
    return int(np.abs(now.astype(np.int16) - then).max()) / 255


def _obstacles(then: SceneSummary | None, now: SceneSummary | None) -> Iterator[str]:
    """Why then and now cannot be compared."""
    if now is None:
        yield 'there is no fresh observation'
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
        yield f'{whose} says that joint {joint} is at {joints[joint]}'
    if not scene.images:
        yield f'{whose} has no image'
    for view, image in scene.images.items():
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or not image.size:
            yield f'{whose} has a {view} image of shape {image.shape}, {image.dtype}, not uint8'


def _names(scene: SceneSummary) -> str:
    return ', '.join(sorted(scene.images))
