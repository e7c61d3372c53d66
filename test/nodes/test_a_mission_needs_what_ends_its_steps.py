"""The mission node starts only if the policy answers questions and the end of a step is known."""

import pytest
import yaml
from own_folder import FOLDER

from embodied_kv.nodes.mission import Mission
from embodied_kv.robots.reading import SHIPPED


@pytest.mark.parametrize(
    'language, missing',
    [
        ({'prompts': ['Subtask:']}, 'language.questions must be true (got false)'),
        ({'questions': True}, 'language.success must be a question where there is no planner'),
        ({'questions': True, 'success': 'Is it done?'}, ''),
        ({'questions': True, 'planner': 'planner_missions', 'domain': 'tabletop'}, ''),
    ],
)
def test_the_node_starts_or_logs_what_the_contract_lacks(robot, capfd, language, missing):
    contract = yaml.safe_load((SHIPPED / 'tabletop.yaml').read_text()) | {'language': language}
    path = FOLDER / 'language.yaml'
    path.write_text(yaml.safe_dump(contract))
    node = robot.bring(Mission, contract=str(path))
    assert node.autostart == (not missing)
    assert missing in capfd.readouterr().err
