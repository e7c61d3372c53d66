"""Each shipped contract is complete and fits the policies that it names."""

import pytest

from embodied_kv.robots import mapping
from embodied_kv.robots.channels import GRIPPERS
from embodied_kv.robots.mapping import outputs
from embodied_kv.robots.reading import SHIPPED, load, of_text, shipped

# By robot: numbers of state and action dims, views and outputs.
SIZES = {
    'aloha': (14, 14, 3, 4),
    'franka': (8, 8, 2, 2),
    'franka_pi0': (8, 8, 2, 2),
    'franka_position': (8, 8, 2, 2),
    'franka_robotiq': (8, 8, 2, 2),
    'libero': (8, 7, 2, 2),
    'so101': (6, 6, 2, 2),
    'tabletop': (7, 7, 2, 1),
    'ur5e': (7, 7, 2, 2),
    'ur5e_robotiq': (7, 7, 2, 2),
}


def test_all_are_known():
    assert set(shipped()) == set(SIZES)


@pytest.mark.parametrize('name', SIZES)
def test_contract_has_the_dimensions_of_its_policies(name):
    contract = load(name)
    found = (
        len(mapping.StateMap(contract).dimensions),
        len(mapping.action_dimensions(contract)),
        len(contract.views),
        len(outputs(contract)),
    )
    assert found == SIZES[name]


@pytest.mark.parametrize('name', SIZES)
def test_every_number_goes_out_once(name):
    contract = load(name)
    places = [place for output in outputs(contract) for place in output.index]
    assert sorted(places) == list(range(len(mapping.action_dimensions(contract))))


@pytest.mark.parametrize('name', ['franka_robotiq', 'ur5e_robotiq'])
def test_robotiq_gripper_is_an_action_of_one_joint(name):
    (gripper,) = (o for o in outputs(load(name)) if o.type in GRIPPERS)
    assert gripper.topic == 'robotiq_gripper_controller/gripper_cmd'
    assert gripper.axes == ('robotiq_85_left_knuckle_joint',) and gripper.max_effort == 0


@pytest.mark.parametrize('name', SIZES)
def test_stop_topics_in_comments_are_a_valid_section(name):
    """The commented section of a contract can be used as it is."""
    text = (SHIPPED / f'{name}.yaml').read_text()
    lines = text[text.find('# estop:') :].splitlines() if '# estop:' in text else []
    of_text(text + '\n' + '\n'.join(line.removeprefix('# ') for line in lines), name)
    assert bool(lines) == name.endswith('_robotiq')
