"""The report counts judged tasks and complete answers."""

import json
from types import SimpleNamespace

import pytest

from embodied_kv.demo.director import GivenTask, SceneQuestion
from embodied_kv.demo.monitor import StreamText
from embodied_kv.demo.report import report
from embodied_kv.demo.score import Score
from embodied_kv.demo.sim.tasks import Task
from embodied_kv.srv import KvStats

PICK, REACH = Task('pick', 'red cube'), Task('reach', 'red cube')


@pytest.fixture
def told():
    """Return the report of four tasks and four questions."""
    tasks = [
        GivenTask(2_000_000_000, 7, PICK, 'lift the red cube', True, False, 4.2),
        GivenTask(8_000_000_000, 7, REACH, 'reach the red cube', False, True, 6.0),
        GivenTask(15_000_000_000, 7, PICK, 'grasp the red cube', False, False, 1.5, 'it fell'),
        GivenTask(17_000_000_000, 7, PICK, 'take the red cube'),
    ]
    questions = [
        SceneQuestion(0, 'What shape is the red thing?', 'cube', stream=1),
        SceneQuestion(0, 'How many objects are there?', '4', stream=2),
        SceneQuestion(0, 'What is in the gripper?', 'nothing', stream=3),
        SceneQuestion(0, 'What is in the gripper?', 'nothing', refused='there is no frame'),
    ]
    monitor = SimpleNamespace(
        weights='random',
        seconds=20.0,
        since_began=lambda stamp: (stamp - 1_000_000_000) / 1e9,
        commands=[],
        streams={
            1: StreamText(0, questions[0].text, ' cube', 2, 'eos'),
            2: StreamText(0, questions[1].text, ' 3', 2, 'eos'),
            3: StreamText(0, questions[2].text, ' not', 1, ''),
        },
        frames=0,
        tokens=5,
        missed=0,
        stats=KvStats.Response(),
        diagnostics={},
    )
    director = SimpleNamespace(told=tasks, judged=tasks[:3], questions=questions)
    made = report(monitor, director, Score(lambda moment: None))
    return json.loads(json.dumps(made))


def test_a_task_that_is_not_over_is_listed_but_not_counted(told):
    assert told['tasks done'] == {'done': 1, 'failed': 1, 'replaced': 1, 'told': 3}
    assert [task['done'] for task in told['tasks']] == [True, False, False, None]
    assert [task['replaced'] for task in told['tasks']] == ['', '', 'it fell', '']
    assert told['tasks'][1] == {
        'at': 7.0,
        'instruction': 'reach the red cube',
        'family': 'reach',
        'scene': 7,
        'done': False,
        'wrong': True,
        'replaced': '',
        'seconds': 6.0,
    }


def test_an_answer_is_right_wrong_or_not_there(told):
    questions = told['words right']['questions']
    assert [question['right'] for question in questions] == [True, False, None, None]
    assert [question['answer'] for question in questions] == ['cube', '3', 'not', '']
    assert questions[3]['refused'] == 'there is no frame'
