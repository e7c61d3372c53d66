"""Each contract that comes with the package is whole, and fits the policies it names."""

import pytest

from embodied_kv.robots import mapping
from embodied_kv.robots.outputs import outputs
from embodied_kv.robots.reading import load, shipped

# robot: state, actions, views, outputs
SIZES = {
    'aloha': (14, 14, 3, 4),
    'franka': (8, 8, 2, 2),
    'libero': (8, 7, 2, 2),
    'so101': (6, 6, 2, 2),
    'tabletop': (7, 7, 2, 1),
    'ur5e': (7, 7, 2, 2),
}


def test_all_are_known():
    assert set(shipped()) == set(SIZES)


@pytest.mark.parametrize('name', SIZES)
def test_it_has_the_numbers_of_its_policies(name):
    contract = load(name)
    found = (
        len(mapping.state_dimensions(contract)),
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
