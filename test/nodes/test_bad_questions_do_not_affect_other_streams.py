"""`ask` refuses invalid requests with the reason, and the streams of other clients continue."""

import math

import pytest

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.srv import Ask

WORDS = 'words ' * 20_000


@pytest.fixture
def suite(robot):
    """Start a suite without prompts, in which answers end only by their length."""
    robot.up(Perception, Action, Language, prompt_interval_frames=0)
    robot.until(lambda: robot.handles)
    EngineHost._shared.engine.policy.tokenizer.eos = -1
    return robot


def ask(robot, question='what is red?', **fields):
    return robot.call(Ask, 'language/ask', question=question, **fields)


def said(robot, stream):
    """Wait until a stream has ended; return its last message."""
    robot.until(lambda: any(t.stream == stream and t.finished for t in robot.texts), show=False)
    return next(text for text in robot.texts if text.stream == stream and text.finished)


@pytest.mark.parametrize(
    'fields, why',
    [
        ({'temperature': math.nan}, '(got nan)'),
        ({'temperature': math.inf}, '(got inf)'),
        ({'temperature': -0.5}, '(got -0.5)'),
        (
            {'max_tokens': 2**32 - 1},
            '4294967295 do not fit the 48 tokens of decode KV',
        ),
        ({'max_tokens': 48}, 'an answer of 48 do not fit the 48 tokens of decode KV'),
        ({'question': WORDS}, 'shorten it'),
        ({'question': '\n\t'}, 'the question is empty'),
        ({'question': ''}, 'the question is empty'),
    ],
)
def test_a_bad_question_is_refused_and_others_are_answered(suite, capfd, fields, why):
    good = ask(suite, max_tokens=20)
    capfd.readouterr()
    bad = ask(suite, **fields)
    assert not bad.success and why in bad.message and not bad.stream
    assert said(suite, good.stream).reason == 'length'
    # A busy machine may stop the arm, so only errors of the language node count.
    lines = capfd.readouterr().err.splitlines()
    assert not [line for line in lines if 'ERROR' in line and '.language]' in line]
    suite.more(suite.handles)
    kv = EngineHost._shared.engine.kv
    kv.check_integrity()
    assert kv.stats().streams == 0


@pytest.mark.parametrize('temperature, seed', [(1e-45, 0), (1.0, 2**63), (3e38, 2**64 - 1)])
def test_every_seed_and_temperature_that_a_message_holds_is_answered(suite, temperature, seed):
    response = ask(suite, temperature=temperature, seed=seed, max_tokens=3)
    assert response.success, response.message
    end = said(suite, response.stream)
    assert (end.reason, end.tokens) == ('length', 3)


def test_no_tokens_asks_for_as_many_as_the_node_is_set_to(suite):
    response = ask(suite, max_tokens=0)
    assert said(suite, response.stream).tokens == 8
