"""A robot without a model publishes the texts of its policy server, or reports why it cannot."""

import math

import pytest
from remote_suite import PATIENCE, PlainServer, actions, fresh, running_server
from std_msgs.msg import String

from embodied_kv.nodes.remote.action import RemoteAction
from embodied_kv.nodes.remote.language import RemoteLanguage
from embodied_kv.robots.reading import load
from embodied_kv.serving.websocket.extensions import Extensions
from embodied_kv.srv import Ask, Cancel

CALM = {'server__reply_timeout': PATIENCE, 'server__answer_timeout': PATIENCE, 'preset': 'tiny'}
CALM |= {'camera_timeout': 60.0, 'max_image_age': 600.0}


def speaking(robot, address):
    node = robot.up(RemoteLanguage, server__address=address, **CALM)
    robot.until(lambda: node._server.policy.is_connected and node._frames.newest() is not None)
    return node


def ask(robot, question='what is there?', **more):
    robot.show()
    return robot.call(Ask, 'language/ask', question=question, **more)


def test_a_question_is_answered_by_our_server(robot):
    with running_server('tabletop') as opened:
        speaking(robot, f'ws://127.0.0.1:{opened.port}')
        answer = ask(robot, 'Subtask:', max_tokens=4)
        assert answer.success, answer.message
        robot.until(lambda: robot.texts)
        told = robot.texts[0]
        assert told.stream == answer.stream and told.finished and told.query == 'Subtask:'
        assert told.reason in ('eos', 'length') and told.tokens <= 4
        for wrong, why in ((dict(question=' '), 'empty'), (dict(temperature=0.5), 'must be 0')):
            assert why in ask(robot, **wrong).message


def test_a_robot_that_stands_without_an_instruction_is_asked_about_what_it_sees(robot):
    with running_server('tabletop') as opened:
        speaking(robot, f'ws://127.0.0.1:{opened.port}')
        robot.instruction.publish(String(data=''))
        robot.until(lambda: not robot.suite[0]._frames.instruction)
        assert ask(robot, 'What is in the gripper?', max_tokens=4).success
        robot.until(lambda: robot.texts)
        assert robot.texts[0].reason in ('eos', 'length')
        assert opened.sessions.values()['batches'] == 0


def test_a_server_that_answers_no_questions_is_told_by_name(robot):
    with PlainServer(lambda request: actions(7)) as server:
        node = speaking(robot, server.address)
        answer = ask(robot)
        assert not answer.success and 'answers no questions' in answer.message
        assert not server.asked and 'silent' in node.report()[1]


def test_without_a_server_there_is_no_answer(robot):
    with PlainServer(lambda request: actions(7)) as server:
        gone = server.address
    node = robot.up(RemoteLanguage, server__address=gone, **CALM)
    robot.until(lambda: 'Connect' in node._server.policy.problem)
    answer = ask(robot)
    assert (
        not answer.success and 'no model of its own' in answer.message and gone in answer.message
    )


@pytest.mark.parametrize('ends', ['cancel', 'deactivate'])
def test_a_question_ends_once(robot, ends):
    with running_server('tabletop') as opened:
        node = speaking(robot, f'ws://127.0.0.1:{opened.port}')
        stream = ask(robot).stream
        if ends == 'cancel':
            robot.call(Cancel, 'language/cancel', stream=stream)
        else:
            node.trigger_deactivate()
        robot.until(lambda: robot.texts)
        robot.spin(0.3)
        assert [text.stream for text in robot.texts] == [stream]


def both(robot, address, **more):
    """Start the action node and the language node of one robot, connected to a server."""
    options = CALM | {
        'server__address': address,
        'max_chunk_age': 60.0,
        'missed_chunk_limit': 1000,
    }
    return robot.up(RemoteAction, RemoteLanguage, **options | more)


def test_the_prompts_of_the_contract_are_continued_on_what_the_robot_acts_on(robot):
    with running_server('tabletop', engine={'streams': 8}) as opened:
        both(robot, f'ws://127.0.0.1:{opened.port}')
        prompts = load('tabletop').language.prompts
        robot.until(lambda: {text.query for text in robot.texts} >= set(prompts))
        assert all(text.finished for text in robot.texts)
        stamps = {(c.header.stamp.sec, c.header.stamp.nanosec) for c in robot.chunks}
        seen = {(t.header.stamp.sec, t.header.stamp.nanosec) for t in robot.texts}
        assert seen <= stamps


def test_a_question_of_a_robot_that_acts_shows_no_frame_again(robot, monkeypatch):
    monkeypatch.setattr('embodied_kv.nodes.remote.language.NEW', math.inf)  # never too old
    with running_server('tabletop', engine={'streams': 8}) as opened:
        _, language = both(robot, f'ws://127.0.0.1:{opened.port}')
        robot.until(lambda: language._server.policy.is_connected and language._chunk)
        answer = ask(robot, 'What is in the gripper?', max_tokens=4)
        assert answer.success, answer.message
        robot.until(lambda: any(text.stream == answer.stream for text in robot.texts))
        assert opened.sessions.values()['sessions'] == 1  # only that of the action node


def test_with_a_prompt_interval_of_0_the_robot_says_nothing_unasked(robot):
    with running_server('tabletop', engine={'streams': 8}) as opened:
        both(robot, f'ws://127.0.0.1:{opened.port}', prompt_interval_frames=0)
        robot.until(lambda: fresh(robot) >= 5)
        answer = ask(robot, 'What is in the gripper?', max_tokens=4)
        robot.until(lambda: robot.texts)  # text of a prompt would have arrived earlier
        assert {text.stream for text in robot.texts} == {answer.stream}


def test_prompts_go_on_after_a_server_that_refused_some(robot):
    asked = []
    wrong = {'error': 'no'}, {'text': 5}, {}

    def answer(request):
        named = {'request_id': request['request_id']}
        if request.get('endpoint') != 'ask':
            return actions(7, count=50) | named
        asked.append(request)
        text = {'text': 'put it away', 'tokens': 3, 'reason': 'eos'}
        return (wrong[len(asked) - 1] if len(asked) <= len(wrong) else text) | named

    told = Extensions(50, 7, 0.1, False, False, True, 2, words=True)
    with PlainServer(answer, told.metadata) as server:
        _, language = both(robot, server.address)
        robot.until(lambda: len(robot.texts) >= 2)
        assert language.warning_counts['prompt'] == len(wrong)
        assert [one['question'] for one in asked[:2]] == ['Subtask:', 'Narrate:']
        assert not any(one['evict'] for one in asked)
        assert {text.text for text in robot.texts} == {'put it away'}
