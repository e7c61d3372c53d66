"""A contract that cannot be used is refused with file, field and what to write."""

import copy

import pytest
import yaml

from embodied_kv.robots.reading import SHIPPED, ContractError, load, parse

SO101 = yaml.safe_load((SHIPPED / 'so101.yaml').read_text())
ARM, GRIPPER = 0, 1


def changed(change):
    values = copy.deepcopy(SO101)
    change(values)
    return values


def state(values):
    return values['observations']['observation.state']


def actions(values):
    return values['actions']['action']


def front(values):
    return values['observations']['observation.images.front']


def second_gripper(values):
    """Return a second source of gripper actions, with limits and feedback of its own joint."""
    values['limits']['thumb'] = values['limits']['gripper']
    values['feedback'] = {'joint_states': ['thumb']}
    return actions(values)[GRIPPER] | {'select': ['position.thumb'], 'names': ['thumb.pos']}


CASES = {
    'unknown key': (
        lambda v: v.update(fsp=30),
        ['so101.yaml: fsp is unknown: did you mean fps?'],
    ),
    'unknown key of a camera': (
        lambda v: front(v).update(rotation=90),
        ['observations.observation.images.front.rotation is unknown', 'rotate'],
    ),
    'unknown key of a source': (
        lambda v: actions(v)[ARM].update(offest=1.0),
        ['actions.action[0].offest is unknown: did you mean offset?'],
    ),
    'missing unit': (
        lambda v: state(v)[ARM].pop('unit'),
        ['observations.observation.state[0].unit is missing: write', 'rad, deg'],
    ),
    'unit that is none': (
        lambda v: state(v)[ARM].update(unit='degrees'),
        ["observations.observation.state[0].unit is 'degrees'", 'rad'],
    ),
    'missing fps': (lambda v: v.pop('fps'), ['fps is missing: write actions per second']),
    'fps that is text': (lambda v: v.update(fps='30'), ["fps is '30'", 'number']),
    'fps of no time': (lambda v: v.update(fps=0), ['fps is 0', 'greater than 0']),
    'missing relative': (
        lambda v: actions(v)[ARM].pop('relative'),
        ['actions.action[0].relative is missing: write true, false'],
    ),
    'two joints on one index': (
        lambda v: (
            state(v)[ARM].update(index=[0, 1, 2, 3, 4]),
            state(v)[GRIPPER].update(index=[4]),
        ),
        ['index 4 must have one number (got position.wrist_roll, position.gripper)'],
    ),
    'a gap': (
        lambda v: (
            state(v)[ARM].update(index=[0, 1, 2, 3, 4]),
            state(v)[GRIPPER].update(index=[6]),
        ),
        ['observations.observation.state: index 5 must have a number'],
    ),
    'limits of an unmoved joint': (
        lambda v: v['limits'].update(elbow={'acceleration': 1.0}),
        ['limits must name moved axes only (got elbow)'],
    ),
    'a joint without limits': (
        lambda v: v['limits'].pop('gripper'),
        ['limits of gripper are missing'],
    ),
    'limits the wrong way round': (
        lambda v: v['limits']['gripper'].update(position=[1.0, -1.0]),
        ['limits.gripper.position: must be [lower, upper] with lower < upper (got [1.0, -1.0])'],
    ),
    'limits without acceleration': (
        lambda v: v['limits']['gripper'].pop('acceleration'),
        ['limits.gripper.acceleration is missing: write rad/s²'],
    ),
    'NaN in limits': (
        lambda v: v['limits']['gripper'].update(velocity=float('nan')),
        ['limits.gripper.velocity', 'finite'],
    ),
    'no camera': (
        lambda v: [v['observations'].pop(f'observation.images.{n}') for n in ('front', 'wrist')],
        ['observations must have a camera'],
    ),
    'a camera of joint states': (
        lambda v: front(v)['channel'].update(type='sensor_msgs/msg/JointState'),
        ['observation.images.front.channel', 'sensor_msgs/msg/Image'],
    ),
    'nothing to select': (
        lambda v: state(v)[ARM].update(select=list('abcde')),
        ['select must be position.JOINT or velocity.JOINT for sensor_msgs/msg/JointState (got a)'],
    ),
    'a velocity in degrees': (
        lambda v: state(v)[GRIPPER].update(select=['velocity.gripper']),
        ['unit of velocity.gripper must be that of a velocity: rad/s', '(got 1)'],
    ),
    'a share without a scale': (
        lambda v: state(v)[GRIPPER].pop('scale'),
        ['observations.observation.state[1]: scale is missing'],
    ),
    'scale of nothing': (
        lambda v: state(v)[GRIPPER].update(scale=0.0),
        ['scale must not be 0'],
    ),
    'too few names': (
        lambda v: state(v)[ARM].update(names=['a']),
        ['names must have one entry for each of select (got 1 for 5)'],
    ),
    'relative to another unit': (
        lambda v: (state(v)[ARM].update(unit='rad'), actions(v)[ARM].update(relative=True)),
        ['shoulder_pan.pos (deg) at index 0 must be relative', '(got shoulder_pan.pos (rad))'],
    ),
    'a binary without bounds': (
        lambda v: (actions(v)[GRIPPER].pop('clamp'), actions(v)[GRIPPER].update(binary=True)),
        ['actions.action[1]: clamp is missing'],
    ),
    'more executed than made': (
        lambda v: v.update(chunk_size=10),
        ['execution_horizon must be <= chunk_size 10 (got 25)'],
    ),
    'a gripper of two joints': (
        lambda v: actions(v)[ARM]['channel'].update(type='control_msgs/action/GripperCommand'),
        ['select must name one joint for control_msgs/action/GripperCommand (got 5)'],
    ),
    'a gripper of two sources': (
        lambda v: (
            [
                source['channel'].update(
                    topic='gripper_cmd', type='control_msgs/action/ParallelGripperCommand'
                )
                for source in actions(v)[GRIPPER:]
            ]
            + [actions(v).append(second_gripper(v))]
        ),
        ['actions.action: gripper_cmd must move one joint (got two sources)'],
    ),
    'an effort of an arm': (
        lambda v: actions(v)[ARM].update(max_effort=5.0),
        ['max_effort must be absent for trajectory_msgs/msg/JointTrajectory (got 5)'],
    ),
    'a negative effort': (
        lambda v: actions(v)[GRIPPER].update(max_effort=-1.0),
        ['actions.action[1].max_effort is -1.0'],
    ),
    'a velocity as a joint state': (
        lambda v: actions(v)[GRIPPER].update(
            channel=dict(topic='c', type='sensor_msgs/msg/JointState'),
            select=['velocity.gripper'],
            unit='1/s',
        ),
        ['select must be position.JOINT for sensor_msgs/msg/JointState (got velocity.gripper)'],
    ),
    'a topic of two messages': (
        lambda v: actions(v)[GRIPPER]['channel'].update(
            topic='arm_controller/joint_trajectory', type='std_msgs/msg/Float64MultiArray'
        ),
        ['arm_controller/joint_trajectory must have one message type'],
    ),
}


@pytest.mark.parametrize('case', CASES)
def test_contract_is_refused_with_the_remedy(case):
    change, said = CASES[case]
    with pytest.raises(ContractError) as refusal:
        parse(changed(change), 'so101.yaml')
    message = str(refusal.value)
    assert message.startswith('so101.yaml: ')
    for part in said:
        assert part in message


def test_several_problems_are_reported_at_once():
    values = changed(lambda v: (v.pop('fps'), v.update(foo=1)))
    with pytest.raises(ContractError) as refusal:
        parse(values, 'x')
    assert 'fps is missing' in str(refusal.value) and 'foo is unknown' in str(refusal.value)


def test_error_of_an_unknown_name_lists_the_known_names(tmp_path):
    with pytest.raises(ContractError, match='a file or one of aloha, franka'):
        load('so100')


@pytest.mark.parametrize('text', ['a: [', '- 1', '', '\x00'])
def test_file_that_is_not_a_contract_is_refused(tmp_path, text):
    file = tmp_path / 'robot.yaml'
    file.write_text(text)
    with pytest.raises(ContractError, match='robot.yaml'):
        load(file)


def test_keys_of_others_are_left_to_them(tmp_path):
    file = tmp_path / 'robot.yaml'
    file.write_text(yaml.safe_dump(SO101 | {'x-qos': {'depth': 1}}))
    assert load(file).robot_type == 'so101'


def test_a_planner_without_a_domain_is_refused():
    tabletop = yaml.safe_load((SHIPPED / 'tabletop.yaml').read_text())
    del tabletop['language']['domain']
    with pytest.raises(ContractError, match='language: .*domain must be written.*tabletop.*open'):
        parse(tabletop, 'mine.yaml')
    tabletop['language']['domain'] = 'open'
    assert parse(tabletop, 'mine.yaml').language.domain == 'open'
