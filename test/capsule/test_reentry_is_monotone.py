"""A larger distance never leads to a deeper re-entry, and no distance raises an error."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from embodied_kv.capsule.reentry import Depth, Limits, SceneSummary, choose_depth

DEEPEST_FIRST = list(Depth)
NOTHING_SEEN = {'front': np.zeros((2, 2), np.uint8)}
distances = st.tuples(st.floats(0, 0.2), st.integers(0, 80), st.floats(0, 100))
more = st.tuples(st.floats(0, 10), st.integers(0, 175), st.floats(0, 1e6))
limits = st.builds(
    Limits,
    max_joint_distance=st.floats(0, 0.3),
    max_image_change=st.floats(0, 0.5),
    max_action_resume_age=st.floats(0, 50),
    max_planner_resume_age=st.floats(50, 200),
)


def depth(joint, pixel, age, limits):
    """Return the re-entry depth for a joint, a pixel and a clock (s) that differ by so much."""
    then = SceneSummary(np.zeros(2), NOTHING_SEEN, 0)
    image = np.array([[0, pixel], [0, 0]], np.uint8)
    now = SceneSummary(np.array([0.0, -joint]), {'front': image}, round(age * 1e9))
    return choose_depth(then, now, limits).depth


@given(distances, more, st.sets(st.sampled_from([0, 1, 2])), limits)
def test_a_larger_distance_is_never_a_deeper_reentry(near, step, grown, limits):
    far = [d + step[i] * (i in grown) for i, d in enumerate(near)]
    assert DEEPEST_FIRST.index(depth(*far, limits)) >= DEEPEST_FIRST.index(depth(*near, limits))


@given(distances, limits)
def test_the_actor_goes_on_only_within_all_three_limits(near, limits):
    joint, pixel, age = near
    age = round(age * 1e9) / 1e9
    within = (
        joint <= limits.max_joint_distance
        and pixel / 255 <= limits.max_image_change
        and age <= limits.max_action_resume_age
    )
    assert (depth(*near, limits) is Depth.ACTOR) == within
    assert (depth(*near, limits) is Depth.HOLD) == (age > limits.max_planner_resume_age)


anything = st.builds(
    SceneSummary,
    joints=arrays(st.sampled_from(['f8', 'f4', 'i4']), st.sampled_from([(), (0,), (2,), (3,)])),
    images=st.dictionaries(
        st.sampled_from(['front', 'wrist']),
        arrays(st.sampled_from(['u1', 'f4']), st.sampled_from([(), (2, 2), (2, 2, 3), (0, 4)])),
    ),
    stamp=st.integers(-(2**63), 2**63),
    robot=st.sampled_from(['', 'arm']),
)


@given(st.none() | anything, st.none() | anything)
def test_every_scene_gets_a_decision_with_a_one_line_reason(then, now):
    decision = choose_depth(then, now, Limits())
    assert decision.reason and '\n' not in decision.reason
    if now is None or then is None:
        assert decision.depth is Depth.HOLD
