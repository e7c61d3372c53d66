"""The contract in README.md can be copied into a file and used."""

import re
from pathlib import Path

from embodied_kv.robots.reading import load

README = Path(__file__).resolve().parents[2] / 'README.md'


def test_contract_of_the_readme_is_valid(tmp_path):
    (text,) = re.findall(r'```yaml\n(.*?)```', README.read_text(), re.DOTALL)
    path = tmp_path / 'my_arm.yaml'
    path.write_text(text)
    contract = load(path)
    assert contract.robot_type == 'my_arm' and set(contract.limits) == {'shoulder', 'elbow'}
