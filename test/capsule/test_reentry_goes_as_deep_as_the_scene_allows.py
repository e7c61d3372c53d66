"""A restore resumes the actor in an unchanged scene, the planner in a changed one, or holds."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.capsule.reentry import Decision, Depth, Limits, SceneSummary, choose_depth

LIMITS = Limits(
    max_joint_distance=0.05,
    max_image_change=0.1,
    max_action_resume_age=2.0,
    max_planner_resume_age=60.0,
)
SECOND = 10**9


def summary(seconds=0.0, **changes):
    front = np.full((16, 16, 3), 100, np.uint8)
    images = {'front': front, 'wrist': np.zeros((16, 16), np.uint8)}
    return replace(SceneSummary(np.zeros(7), images, round(seconds * SECOND), 'arm'), **changes)


def turned(joint, angle):
    joints = np.zeros(7)
    joints[joint] = angle
    return joints


def seen(value):
    """Return images whose front view has one pixel of that value and 100 elsewhere."""
    images = {view: image.copy() for view, image in summary().images.items()}
    images['front'][3, 4, 1] = value
    return images


def decide(**changes):
    return choose_depth(summary(), summary(**{'seconds': 1.0, **changes}), LIMITS)


def test_an_unchanged_scene_resumes_the_actor():
    assert decide(joints=turned(3, -0.04), images=seen(110)) == Decision(
        Depth.ACTOR,
        'joint 3 has moved 0.04 of 0.05, the front image has changed 0.03922 of 0.1, '
        'the capsule is 1 s old of 2: the actor goes on',
    )
    assert choose_depth(summary(), summary(), LIMITS).depth is Depth.ACTOR


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'joints': turned(3, -0.31)}, 'joint 3 has moved 0.31, more than 0.05'),
        ({'images': seen(200)}, 'the front image has changed 0.3922, more than 0.1'),
        ({'images': seen(0)}, 'the front image has changed 0.3922, more than 0.1'),
        ({'seconds': 2.5}, 'the capsule is 2.5 s old, more than 2'),
        (
            {'joints': turned(0, 1.0), 'seconds': 60.0},
            'joint 0 has moved 1, more than 0.05; the capsule is 60 s old, more than 2',
        ),
    ],
)
def test_a_changed_scene_resumes_the_planner_and_says_what_changed(changes, reason):
    assert decide(**changes) == Decision(
        Depth.PLANNER, f'{reason}: the planner goes on with the present observation'
    )


def test_each_limit_itself_is_still_within():
    now = summary(2.0, joints=turned(1, 0.5), images=seen(151))
    limits = Limits(
        max_joint_distance=0.5,
        max_image_change=51 / 255,
        max_action_resume_age=2.0,
        max_planner_resume_age=2.0,
    )
    assert choose_depth(summary(), now, limits).depth is Depth.ACTOR
    assert choose_depth(summary(), now, replace(limits, max_image_change=50 / 255)).depth is (
        Depth.PLANNER
    )


NAN = turned(2, np.nan)
NO_FRONT = {'wrist': summary().images['wrist']}
FLOATS = {view: image.astype(float) for view, image in summary().images.items()}
SMALL = {view: image[:8] for view, image in summary().images.items()}


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'seconds': 61.0}, 'the capsule is 61 s old, more than 60'),
        ({'seconds': -3.0}, 'the observation is 3 s older than the capsule, by stamps'),
        ({'robot': 'leg'}, "the capsule is of the robot 'arm', this is 'leg'"),
        ({'joints': np.zeros(6)}, 'the capsule has 7 joints, the robot has 6'),
        ({'joints': NAN}, 'joint 2 of the observation must be finite (got nan)'),
        ({'joints': turned(6, -np.inf)}, 'joint 6 of the observation must be finite (got -inf)'),
        (
            {'joints': np.zeros(0)},
            'the observation has joints of shape (0,), float64, not of [J], float64',
        ),
        ({'images': {}}, 'the observation has no image'),
        (
            {'images': NO_FRONT},
            'the capsule has the views front, wrist, the observation has wrist',
        ),
        (
            {'images': FLOATS},
            'the observation has a front image of shape (16, 16, 3), float64, not uint8',
        ),
        ({'images': SMALL}, 'the front image is (8, 16, 3), in the capsule (16, 16, 3)'),
    ],
)
def test_incomparable_scene_resumes_at_depth_hold(changes, reason):
    assert decide(**changes) == Decision(Depth.HOLD, f'{reason}: the robot holds')


def test_restore_without_an_observation_or_a_stored_scene_holds():
    assert choose_depth(summary(), None, LIMITS) == Decision(
        Depth.HOLD, 'there is no recent observation: the robot holds'
    )
    assert choose_depth(None, summary(), LIMITS) == Decision(
        Depth.HOLD, 'the capsule has no summary of its scene: the robot holds'
    )
    damaged = summary(joints=NAN)
    assert (
        'joint 2 of the capsule must be finite' in choose_depth(damaged, summary(1), LIMITS).reason
    )


@pytest.mark.parametrize(
    ('limits', 'message'),
    [
        ({'max_action_resume_age': -1.0}, 'max_action_resume_age must not be negative .got -1.0'),
        ({'max_joint_distance': np.nan}, 'max_joint_distance must not be negative .got nan'),
        ({'max_image_change': 1.5}, 'max_image_change must be from 0 to 1 .got 1.5'),
        (
            {'max_action_resume_age': 9.0, 'max_planner_resume_age': 8.0},
            'max_action_resume_age must be at most max_planner_resume_age, 8.0 s',
        ),
    ],
)
def test_limits_that_mean_nothing_are_refused(limits, message):
    with pytest.raises(ValueError, match=message):
        Limits(**limits)
