"""Soft limits, ros2_control limits and mimic joints of a URDF restrict what may be commanded."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.control.limits import LimitError, Limits, linear_in_urdf

SIDES = st.floats(0.01, 3)


def urdf(hard=(-2.0, 2.0), inside='', control='', kind='revolute'):
    """Return a URDF with the joint `pan` and the joint `copy` that mimics it."""
    lower, upper = hard
    return f"""<robot name="r">
      <joint name="pan" type="{kind}">
        <limit lower="{lower}" upper="{upper}" velocity="3" effort="1"/>{inside}
      </joint>
      <joint name="copy" type="prismatic">
        <limit lower="0" upper="1" velocity="1" effort="1"/><mimic joint="pan" multiplier="-1"/>
      </joint>
      {control}
    </robot>"""


def interface(name, low, high, more='', joint='pan', mimic=''):
    return f"""<ros2_control name="c" type="system"><joint name="{joint}" {mimic}>
      <command_interface name="{name}">
        <param name="min">{low}</param><param name="max">{high}</param>{more}
      </command_interface>
      <state_interface name="{name}"><param name="min">-9</param></state_interface>
    </joint></ros2_control>"""


def read(text, joints=('pan',), **given):
    return Limits.from_urdf(text, joints, ['position'] * len(joints), [5] * len(joints), **given)


def soft(lower, upper):
    return (
        f'<safety_controller soft_lower_limit="{lower}" soft_upper_limit="{upper}" '
        'k_velocity="10"/>'
    )


@given(SIDES, SIDES, SIDES, SIDES, SIDES, SIDES)
def test_narrowest_of_hard_soft_and_controller_limits_holds(a, b, c, d, e, f):
    lim = read(urdf((-a, b), soft(-c, d), interface('position', -e, f)))
    assert lim.lower[0] == -min(a, c, e) and lim.upper[0] == min(b, d, f)


def test_safety_controller_without_soft_limits_changes_nothing():
    lim = read(urdf(inside='<safety_controller k_velocity="10"/>'))
    assert (lim.lower[0], lim.upper[0]) == (-2, 2)


def test_soft_limits_bound_a_joint_that_stays_continuous():
    lim = read(urdf(kind='continuous', inside=soft(-5, 5)))
    assert (lim.lower[0], lim.upper[0]) == (-5, 5) and lim.continuous[0]


def test_contract_that_is_wider_than_the_soft_limits_is_refused():
    with pytest.raises(LimitError, match=r'pan: upper limit must be within 1.5, the soft .*1.8'):
        read(urdf(inside=soft(-1.5, 1.5)), lower=[-1], upper=[1.8])


def test_velocity_of_the_controller_narrows_to_its_slower_side():
    assert read(urdf(control=interface('velocity', -2.5, 2.0))).velocity[0] == 2.0
    assert read(urdf(control=interface('velocity', -9, 9))).velocity[0] == 3.0


def test_disabled_limits_of_the_controller_are_ignored():
    lim = read(urdf(control=interface('position', -1, 1, more='<limits enable="false"/>')))
    assert (lim.lower[0], lim.upper[0]) == (-2, 2)


def test_soft_limits_outside_the_hard_limits_are_refused():
    with pytest.raises(LimitError, match='joint pan: lower must be < upper'):
        read(urdf(inside=soft(3, 4)))


def test_command_to_a_mimic_joint_is_refused_and_names_its_leader():
    with pytest.raises(LimitError, match='copy must not be commanded: it mimics pan; command pan'):
        read(urdf(), ('pan', 'copy'))
    lim = Limits(['copy'], [0], [1], [1], [1], ['position'])
    with pytest.raises(LimitError, match='it mimics pan'):
        lim.check_against(urdf())


def test_mimic_that_ros2_control_turns_off_may_be_commanded():
    text = urdf(control=interface('position', 0, 1, joint='copy', mimic='mimic="false"'))
    assert read(text, ('copy',)).upper[0] == 1


def test_linear_joints_are_the_prismatic_ones():
    assert linear_in_urdf(urdf()) == {'pan': False, 'copy': True}
    assert math.isinf(read(urdf(kind='continuous')).upper[0])
