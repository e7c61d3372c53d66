"""Without a model the robot says what its policy server says, or by name why it says nothing."""

import pytest
from remote_suite import PATIENCE, PlainServer, actions, door

from embodied_kv.nodes.remote.language import RemoteLanguage
from embodied_kv.srv import Ask, Cancel

CALM = {'server__reply_seconds': PATIENCE, 'server__answer_seconds': PATIENCE, 'preset': 'tiny'}
CALM |= {'camera_timeout': 60.0, 'max_image_age': 600.0}


def speaking(robot, address):
    node = robot.up(RemoteLanguage, server__address=address, **CALM)
    robot.until(lambda: node._server.policy.is_connected and node._frames.newest() is not None)
    return node


def ask(robot, question='what is there?', **more):
    robot.show()
    return robot.call(Ask, 'language/ask', question=question, **more)


def test_a_question_is_answered_by_our_server(robot):
    with door('tabletop') as opened:
        speaking(robot, f'ws://127.0.0.1:{opened.port}')
        answer = ask(robot, 'Subtask:', max_tokens=4)
        assert answer.success, answer.message
        robot.until(lambda: robot.texts)
        told = robot.texts[0]
        assert told.stream == answer.stream and told.finished and told.query == 'Subtask:'
        assert told.reason in ('eos', 'length') and told.tokens <= 4
        for wrong, why in ((dict(question=' '), 'empty'), (dict(temperature=0.5), 'must be 0')):
            assert why in ask(robot, **wrong).message


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
    with door('tabletop') as opened:
        node = speaking(robot, f'ws://127.0.0.1:{opened.port}')
        stream = ask(robot).stream
        if ends == 'cancel':
            robot.call(Cancel, 'language/cancel', stream=stream)
        else:
            node.trigger_deactivate()
        robot.until(lambda: robot.texts)
        robot.spin(0.3)
        assert [text.stream for text in robot.texts] == [stream]
