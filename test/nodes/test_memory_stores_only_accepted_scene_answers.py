"""Memory does not store single answers that a mission rejects in its scene query.

The memory and mission nodes are real, and language is a stand-in. The planner has random weights.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_suite import begin, done, segments, texts
from rclpy.action import ActionClient

from embodied_kv.action import Mission as MissionAction
from embodied_kv.demo.domain import TabletopDomain
from embodied_kv.demo.sim.language import HELD
from embodied_kv.demo.sim.table_memory import read_table, refusal
from embodied_kv.msg import ControlState, TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.mission import Mission
from embodied_kv.planning.notes import NoteTaker
from embodied_kv.srv import Ask

KNOWN = (
    ('red cube', 'object', 'red cube: in the blue bin'),
    ('blue bin', 'place', 'blue bin: holds the red cube'),
)
SAID = {
    'Do you see the red cube?': 'yes',
    'Do you see the green cube?': 'yes',
    'What shape is the green thing?': 'cube',
    'Where is the red cube?': 'on the table',
    'Where is the green cube?': 'in the blue bin',
    'What is in the blue bin?': 'the red cube',
    HELD: 'nothing',
}


@pytest.fixture
def heard(robot, tmp_path):
    """Start memory with a cube in a bin, and a mission node that is ready for a goal.

    Return the list of questions and answers of language.
    """
    speak = robot.node.create_publisher(TextDelta, 'language/text', qos.TEXT)
    answers = []

    def ask(request, response):
        answers.append((request.question, SAID.get(request.question, 'no')))
        response.success, response.stream = True, len(answers)
        text = dict(query=request.question, text=answers[-1][1], stream=response.stream)
        speak.publish(robot.stamped(TextDelta(**text, finished=True, reason='eos')))
        return response

    robot.node.create_service(Ask, 'language/ask', ask)
    arm = robot.node.create_publisher(ControlState, 'control/state', qos.STATUS)
    arm.publish(ControlState(state=ControlState.ARMED))
    begin(robot, tmp_path, Mission)
    robot.until(lambda: speak.get_subscription_count() >= 2, show=False)  # mission and memory
    done(robot, 'upsert', segments=segments(*KNOWN))
    return answers


def test_a_look_that_contradicts_itself_leaves_memory_as_it_was(robot, heard):
    client = ActionClient(robot.node, MissionAction, 'mission')
    assert client.wait_for_server(60.0)
    sent = client.send_goal_async(MissionAction.Goal(mission='tidy up'))
    robot.until(sent.done, show=False)
    over = sent.result().get_result_async()
    robot.until(over.done, show=False)
    assert ('Where is the green cube?', 'in the blue bin') in heard, 'it looked'
    known = texts(robot)
    assert known['red cube'] == 'red cube: in the blue bin'
    assert 'green cube' not in known
    assert refusal('pick up the green cube', read_table(known.values()))
    client.destroy()


def test_while_a_mission_runs_no_single_answer_tells_of_a_thing():
    notes = NoteTaker(TabletopDomain(), 48)
    notes.follow_mission(True, 10)
    assert not notes.hear('Where is the red cube?', 'on the table', 11)
    assert not notes.hear('What is in the blue bin?', 'the red cube', 11)
    assert not notes.hear(HELD, 'the red cube', 11)


FRAMES = st.integers(0, 99)


@given(FRAMES, FRAMES, FRAMES)
def test_once_it_is_over_answers_of_newer_frames_tell(began, took, at):
    notes = NoteTaker(TabletopDomain(), 48)
    notes.follow_mission(True, began)
    notes.follow_mission(False, began + took)
    told = notes.hear('Where is the red cube?', 'on the table', at)
    assert bool(told) == (at > began + took)
