"""A contract declares continuous joints, grippers, tolerances and stop topics."""

import copy
import math

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.control.limits import LimitError
from embodied_kv.control.limits_from_contract import (
    limits_from_contract,
    linear_joints,
    relative_targets,
    tracking_errors,
)
from embodied_kv.robots.contract import Estop
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import SHIPPED, ContractError, of_text, parse, shipped, to_text

SO101 = yaml.safe_load((SHIPPED / 'so101.yaml').read_text())
LIBERO = yaml.safe_load((SHIPPED / 'libero.yaml').read_text())
SAFETY = dict(topic='safety_mode', type='ur_dashboard_msgs/msg/SafetyMode', field='mode', safe=1)
ARM = 5  # joints of the SO-101 before its gripper
PAN = 'limits.shoulder_pan'


def changed(*changes, of=SO101, **fields):
    """Return the values of a contract with other limits and fields.

    changes: (joint, limits to set; '' removes one). fields: top-level fields to set.
    """
    values = copy.deepcopy(of) | fields
    for joint, entries in changes:
        values['limits'][joint] = {
            key: value for key, value in (values['limits'][joint] | entries).items() if value != ''
        }
    return values


def robot(*changes, **fields):
    return Embodiment.of(parse(changed(*changes, **fields), 'robot.yaml'))


ENDLESS = ('wrist_roll', dict(continuous=True, position=''))


def test_continuous_joint_has_no_position_limits():
    limits = limits_from_contract(robot(ENDLESS), '')
    assert limits.continuous.tolist() == [False] * 4 + [True, False]
    assert (limits.lower[4], limits.upper[4]) == (-math.inf, math.inf)


def test_position_joint_without_any_limit_is_refused():
    with pytest.raises(LimitError, match='limits.wrist_roll.position is missing'):
        limits_from_contract(robot(('wrist_roll', dict(position=''))), '')


REFUSED = {
    'continuous with position': (
        changed(('wrist_roll', dict(continuous=True))),
        'limits.wrist_roll: position must be absent for a continuous joint',
    ),
    'continuous that is text': (
        changed(('wrist_roll', dict(continuous='yes'))),
        "limits.wrist_roll.continuous is 'yes'",
    ),
    'continuous axis of a twist': (
        changed(('twist.linear.x', dict(continuous=True)), of=LIBERO),
        'limits.twist.linear.x must not have continuous or role',
    ),
    'continuous linear joint': (
        changed(('panda_finger_joint1', dict(continuous=True, position='')), of=LIBERO),
        'limits.panda_finger_joint1.continuous must be false for a joint in m',
    ),
    'unknown role': (changed(('gripper', dict(role='hand'))), "limits.gripper.role is 'hand'"),
    'relative target of zero': (changed(max_relative_target=0), 'finite and > 0 (got 0)'),
    'relative target that is true': (changed(max_relative_target=True), '> 0 (got True)'),
    'relative target that is infinite': (
        changed(max_relative_target=math.inf),
        'max_relative_target: must be one number',
    ),
    'relative target of no joint': (
        changed(max_relative_target={'elbow': 0.1}),
        'max_relative_target must name joints that are commanded by position (got elbow)',
    ),
    'relative target of a twist': (
        changed(of=LIBERO, max_relative_target={'twist.linear.x': 0.1}),
        '(got twist.linear.x); there are panda_finger_joint1',
    ),
    'stop without a safe value': (
        changed(estop=[{k: v for k, v in SAFETY.items() if k != 'safe'}]),
        'estop[0].safe is missing',
    ),
    'stop with a number as safe value': (
        changed(estop=[SAFETY | dict(safe=1.0)]),
        'estop[0].safe: safe must be booleans, integers or strings',
    ),
    'stop with mixed safe values': (
        changed(estop=[SAFETY | dict(safe=[1, 'NORMAL'])]),
        "all of one kind (got [1, 'NORMAL'])",
    ),
    'stop with no safe value': (changed(estop=[SAFETY | dict(safe=[])]), '(got [])'),
    'stop of a Bool with an integer': (
        changed(estop=[dict(topic='stop', type='std_msgs/msg/Bool', safe=0)]),
        'has the boolean field data only',
    ),
    'stop of a service': (
        changed(estop=[SAFETY | dict(type='std_srvs/srv/Trigger')]),
        'estop[0].type',
    ),
    'stop with a path that is none': (
        changed(estop=[SAFETY | dict(field='mode.')]),
        'estop[0].field',
    ),
    'stop without time': (changed(estop=[SAFETY | dict(timeout=0)]), 'estop[0].timeout is 0'),
    'stop with an unknown key': (
        changed(estop=[SAFETY | dict(timout=1)]),
        'estop[0].timout is unknown: did you mean timeout?',
    ),
    'one stop topic of two types': (
        changed(estop=[SAFETY, SAFETY | dict(type='std_msgs/msg/Bool', field='data', safe=True)]),
        'estop must give safety_mode one type',
    ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_contract_is_refused_for(case):
    values, said = REFUSED[case]
    with pytest.raises(ContractError) as refusal:
        parse(values, 'robot.yaml')
    assert said in str(refusal.value)


def test_tracking_errors_are_derived_unless_given_and_grippers_have_none():
    errors = tracking_errors(robot(('elbow_flex', dict(tracking_error=0.3))))
    np.testing.assert_array_equal(errors, [np.nan, np.nan, 0.3, np.nan, np.nan, np.inf])
    assert tracking_errors(robot(('gripper', dict(tracking_error=0.5))))[ARM] == 0.5
    twist = tracking_errors(robot(of=LIBERO))
    assert np.isinf(twist).all()


@pytest.mark.parametrize('name', shipped())
def test_shipped_contracts_exempt_their_grippers_only(name):
    shipped = Embodiment.load(name)
    grippers = [axis for axis in shipped.axes if shipped.contract.limits[axis].role == 'gripper']
    assert len(grippers) == (2 if name == 'aloha' else 1)
    assert all('finger' in g or 'gripper' in g or 'knuckle' in g for g in grippers)


def test_one_relative_target_holds_for_the_arm_and_named_ones_for_their_joints():
    assert np.isnan(relative_targets(robot())[:ARM]).all()
    assert relative_targets(robot(max_relative_target=0.2)).tolist() == [0.2] * ARM + [math.inf]
    named = relative_targets(robot(max_relative_target={'gripper': 0.5, 'wrist_flex': 1}))
    np.testing.assert_array_equal(named, [np.nan, np.nan, np.nan, 1.0, np.nan, 0.5])
    velocities = relative_targets(Embodiment.load('franka'))
    assert np.isinf(velocities).all()


def test_joints_in_metres_are_linear_and_shares_ask_the_urdf():
    assert linear_joints(robot()).tolist() == [False] * 6
    slide = """<robot name="r"><joint name="gripper" type="prismatic">
      <limit lower="0" upper="1" velocity="1" effort="1"/></joint></robot>"""
    assert linear_joints(robot(), slide).tolist() == [False] * ARM + [True]
    assert linear_joints(robot(of=LIBERO)).tolist() == [True] * 3 + [False] * 3 + [True]
    assert linear_joints(Embodiment.load('tabletop')).tolist() == [False] * 6 + [True]


def test_stop_topics_survive_their_text():
    stops = [SAFETY | dict(safe=[1, 2], timeout=None), dict(
        topic='/e_stop', type='std_msgs/msg/Bool', safe=False)]  # fmt: skip
    contract = parse(changed(estop=stops, max_relative_target=0.1), 'robot.yaml')
    assert of_text(to_text(contract), 'x') == contract
    safety, button = contract.estop
    assert (safety.safe, safety.timeout) == ((1, 2), None)
    assert (button.field, button.safe, button.timeout) == ('data', (False,), 1.0)


VALUES = st.booleans() | st.integers(0, 3) | st.sampled_from(['', 'RUNNING'])


@given(VALUES, VALUES | st.floats() | st.none())
def test_only_the_listed_value_of_the_same_type_is_safe(safe, value):
    stop = Estop(topic='t', type='my_msgs/msg/State', field='a.b', safe=safe)
    assert stop.is_safe(value) == ((type(safe), safe) == (type(value), value))
