"""The text written for a contract is read as the same contract."""

import pytest

from embodied_kv.robots.reading import load, of_text, shipped, to_text


@pytest.mark.parametrize('name', shipped())
def test_of_text_of_to_text_is_the_contract(name):
    contract = load(name)
    assert of_text(to_text(contract), name) == contract
