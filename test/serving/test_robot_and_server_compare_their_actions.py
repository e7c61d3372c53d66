"""The handshake states the meaning of each action dim; a robot compares it with its contract."""

from dataclasses import replace

import pytest
from server_cases import running_server

from embodied_kv.config import TINY
from embodied_kv.engine_config import EngineConfig
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import load, parse, shipped
from embodied_kv.serving.websocket import codec
from embodied_kv.serving.websocket.extensions import Extensions, compared, meaning


def told(robot, **more):
    """Return the metadata of a server of this robot, packed and unpacked."""
    embodiment = Embodiment.load(robot)
    model = embodiment.adapted(TINY)
    more = {'contract': embodiment.contract, 'fingerprint': 'f0'} | more
    metadata = Extensions.of(model, EngineConfig(), False, **more).metadata
    return codec.unpack(codec.pack(metadata))


def edited(robot, **changes):
    """Return a contract with other values in the first source of its action."""
    values = load(robot).model_dump(exclude_none=True, mode='json')
    values['actions']['action'][0] |= changes
    return parse(values, 'edited')


@pytest.mark.parametrize('robot', shipped())
def test_metadata_states_contract_version_fingerprint_and_each_action(robot):
    found = Extensions.read(told(robot))
    contract = load(robot)
    assert (found.contract, found.fingerprint, found.refusals) == (contract.robot_type, 'f0', True)
    assert found.version and found.action_meaning == meaning(contract)
    assert [action.joint for action in found.action_meaning] == list(Embodiment.load(robot).axes)
    assert compared(found.action_meaning, meaning(contract)) == ''


def test_handshake_states_action_meanings():
    with running_server('franka') as opened, opened.client() as client:
        found = Extensions.read(client.metadata)
        assert found.contract == 'franka' and found.action_meaning == meaning(load('franka'))
        assert found.fingerprint == opened.sessions.fingerprint != '' and found.refusals


@pytest.mark.parametrize(
    'robot, kinds',
    [
        ('franka', ['velocity'] * 7 + ['position']),
        ('franka_position', ['position'] * 8),
        ('libero', ['delta'] * 6 + ['position']),
        ('aloha', ['position'] * 14),  # relative in its contract: servers send absolute actions
    ],
)
def test_the_kind_of_an_action_is_position_velocity_or_delta(robot, kinds):
    assert [action.kind for action in meaning(load(robot))] == kinds


def test_velocities_and_positions_of_the_same_arm_differ():
    found = compared(meaning(load('franka')), meaning(load('franka_position')))
    assert 'number 0 is panda_joint1, velocity in rad/step there' in found
    assert 'panda_joint1, position in rad here' in found and 'and 4 more' in found


def test_another_unit_or_order_is_a_difference():
    own = meaning(load('tabletop'))
    degrees = meaning(edited('tabletop', unit='deg', relative=False))
    assert 'in deg there and shoulder_pan, position in rad here' in compared(degrees, own)
    swapped = own[1], own[0], *own[2:]
    assert 'shoulder_lift, position in rad there' in compared(swapped, own)
    assert compared(swapped, own).count('number') == 2


def test_joints_of_other_names_agree_only_by_the_names_of_the_checkpoint():
    own = meaning(load('so101'))
    prefixed = tuple(replace(action, joint=f'left_{action.joint}') for action in own)
    assert compared(prefixed, own) == ''
    unnamed = tuple(replace(action, name=action.joint) for action in own)
    assert compared(unnamed, own) == ''
    other = tuple(
        replace(action, name=f'left_{action.joint}', joint=f'left_{action.joint}')
        for action in own
    )
    assert compared(other, own)
    joints = [own[1].joint, own[0].joint, *(action.joint for action in own[2:])]
    swapped = tuple(replace(a, joint=joint) for a, joint in zip(own, joints, strict=True))
    assert compared(swapped, own).count('number') == 2
    renamed = (replace(own[0], name=own[1].name), replace(own[1], name=own[0].name), *own[2:])
    assert compared(renamed, own).count('number') == 2


def test_a_server_that_does_not_state_its_actions_is_read():
    older = told('libero', contract=None)
    for key in ('version', 'contract', 'action_meaning', 'fingerprint', 'refusals'):
        del older['embodied_kv'][key]
    found = Extensions.read(older)
    assert found.action_meaning == () and not found.refusals and found.action_dim == 7


@pytest.mark.parametrize(
    'key, value, why',
    [
        ('action_meaning', [], ''),
        ('action_meaning', 'joint', 'must be a list of maps'),
        ('action_meaning', [5] * 7, 'must be a list of maps'),
        ('action_meaning', [{'name': 'x'}] * 7, 'action_meaning.joint must be text'),
        (
            'action_meaning',
            [dict.fromkeys(('name', 'joint', 'kind', 'unit'), 'x')] * 6,
            r'must have 7 entries.*got 6',
        ),
        ('contract', 5, 'contract must be text'),
        ('version', 'x' * 300, 'at most 256 characters'),
        ('refusals', 1, 'refusals must be a valid value'),
        ('dt', None, 'dt must be a valid value'),
    ],
)
def test_invalid_meaning_is_refused_by_its_key(key, value, why):
    metadata = told('libero')
    metadata['embodied_kv'][key] = value
    if not why:
        assert Extensions.read(metadata).action_meaning == ()
        return
    with pytest.raises(ValueError, match=why):
        Extensions.read(metadata)
