"""Robots of a fleet speak and answer by one engine, each in its own namespace and nowhere else."""

import pytest
from fleet_suite import Fleets

from embodied_kv.srv import Ask, Cancel


@pytest.fixture
def fleet(robots, tmp_path):
    return Fleets(robots, tmp_path)


def joined(fleet, robot, name='language/ask', kind=Ask):
    client = robot.node.create_client(kind, name)
    fleet.until(client.service_is_ready)
    robot.node.destroy_client(client)


def serve(fleet, *robots, round=0):
    for robot in robots:
        robot.ask(round)
    fleet.until(lambda: all(round in robot.got() for robot in robots))


def quiet(fleet, count=2, **options):
    """A fleet that speaks only when asked, and robots with a frame each."""
    node = fleet.up(prompt_interval=0, **options)
    made = [fleet.join(seed=i + 1) for i in range(count)]
    for robot in made:
        joined(fleet, robot)
    serve(fleet, *made)
    return node, *made


def ask(fleet, robot, question='what is red?', **fields):
    return fleet.call(robot, Ask, 'language/ask', question=question, **fields)


def said(robot, stream):
    return [text for text in robot.robot.texts if text.stream == stream]


def end(fleet, robot, stream):
    """All that a stream said, and why it ended."""
    fleet.until(lambda: any(text.finished for text in said(robot, stream)))
    whole = said(robot, stream)
    return ''.join(text.text for text in whole), whole[-1].reason


def stays(node):
    """Nothing is decoded from now on, so streams stay."""
    node.host.engine.budget.forecast = lambda now: 0.0


def test_the_prompts_are_continued_every_so_many_rounds(fleet):
    node = fleet.up(prompt_interval=2)
    a, b = fleet.join(seed=1), fleet.join(seed=2)
    for robot in (a, b):
        joined(fleet, robot)
    serve(fleet, a, b)
    serve(fleet, a, round=1)
    prompts = set(node.embodiment.contract.language.prompts)
    fleet.until(lambda: sum(text.finished for text in a.robot.texts) == len(prompts))
    assert {text.query for text in a.robot.texts} == prompts and not b.robot.texts
    assert {text.sequence for text in a.robot.texts} == {1}
    serve(fleet, b, round=1)
    fleet.until(lambda: sum(text.finished for text in b.robot.texts) == len(prompts))
    assert sum(text.finished for text in a.robot.texts) == len(prompts)
    assert not {t.stream for t in a.robot.texts} & {t.stream for t in b.robot.texts}
    node.host.engine.kv.check_integrity()


def test_answers_of_a_batch_equal_those_of_a_robot_alone(fleet):
    node, a, b = quiet(fleet)
    alone = {}
    for robot in (a, b):
        response = ask(fleet, robot)
        assert response.success, response.message
        alone[robot], reason = end(fleet, robot, response.stream)
        assert reason in ('length', 'eos')
    forecast = node.host.engine.budget.forecast
    stays(node)
    both = {robot: ask(fleet, robot).stream for robot in (a, b)}
    node.host.engine.budget.forecast = forecast
    for robot, other in ((a, b), (b, a)):
        assert end(fleet, robot, both[robot])[0] == alone[robot]
        assert not said(other, both[robot])


def test_a_robot_cancels_its_own_streams_alone(fleet):
    node, a, b = quiet(fleet)
    stays(node)
    stream = ask(fleet, a).stream
    refused = fleet.call(b, Cancel, 'language/cancel', stream=stream)
    assert not refused.success and f'no live stream {stream}' in refused.message
    assert [s.id for s in node.host.engine.kv.streams.live()] == [stream]
    assert fleet.call(a, Cancel, 'language/cancel', stream=stream).success
    assert end(fleet, a, stream) == ('', 'cancelled')


def test_without_a_frame_there_is_no_answer_and_the_reason(fleet):
    fleet.up()
    robot = fleet.join()
    joined(fleet, robot)
    response = ask(fleet, robot)
    assert not response.success and f'no frame of {robot.namespace}' in response.message


def test_a_robot_that_the_fleet_does_not_serve_has_no_service(fleet, robots):
    quiet(fleet, 1)
    stranger = robots()
    client = stranger.node.create_client(Ask, 'language/ask')
    assert not client.wait_for_service(1.0)


@pytest.mark.parametrize(
    'fields, why',
    [
        ({'question': ' '}, 'the question is empty'),
        ({'question': 'words ' * 5000}, 'shorten it'),
        ({'temperature': float('nan')}, 'temperature must be finite and at least 0 (got nan)'),
        ({'max_tokens': 10**6}, 'do not fit'),
    ],
)
def test_a_bad_question_harms_nobody(fleet, fields, why):
    node, a, b = quiet(fleet)
    stream = ask(fleet, b).stream
    response = fleet.call(a, Ask, 'language/ask', **{'question': 'what?'} | fields)
    assert not response.success and why in response.message
    assert end(fleet, b, stream)[1] in ('length', 'eos')
    assert node.host.engine.kv.stats().evictions == 0


def test_a_flood_of_questions_ends_no_stream_of_another_robot(fleet):
    node, a, b = quiet(fleet, engine__streams=4)
    mine = [ask(fleet, b).stream for _ in range(2)]
    answers = [ask(fleet, a) for _ in range(40)]
    assert any(answer.success for answer in answers)
    for stream in mine:
        assert end(fleet, b, stream)[1] in ('length', 'eos')
    refused = [answer.message for answer in answers if not answer.success]
    assert all('wait' in message for message in refused)
    serve(fleet, a, b, round=1)
    node.host.engine.kv.check_integrity()


def test_a_robot_that_leaves_takes_its_streams_with_it(fleet):
    node, a, b = quiet(fleet)
    stays(node)
    ask(fleet, a), ask(fleet, b)
    for publisher in (a.requests, a.finished):
        a.node.destroy_publisher(publisher)
    kv = node.host.engine.kv
    fleet.until(lambda: len(kv.streams.live()) == 1)
    assert kv.streams.live()[0].lease.handle.robot == b.namespace
    fleet.until(lambda: node._language.robots == [b.namespace])
    kv.check_integrity()


def test_a_robot_that_falls_silent_ends_its_streams_and_speaks_again_when_it_asks(fleet):
    node, a, b = quiet(fleet, robot_timeout=1.5)
    stays(node)
    ask(fleet, a)
    fleet.until(lambda: not node.host.engine.kv.streams.live())
    assert 'no frame' in ask(fleet, a).message
    serve(fleet, a, round=1)
    assert ask(fleet, a).success


def test_a_fleet_that_goes_leaves_no_stream_and_no_row(fleet):
    node, a, b = quiet(fleet)
    stays(node)
    ask(fleet, a), ask(fleet, b)
    node.trigger_deactivate()
    kv = node.host.engine.kv
    assert not kv.streams.live() and kv.stats().leases == 0
    assert node.host.engine.budget.forecast is None
    node.trigger_activate()
    for robot in (a, b):
        joined(fleet, robot)


def test_a_mute_fleet_answers_nothing_and_opens_nothing(fleet):
    node = fleet.up(language=False)
    robot = fleet.join()
    serve(fleet, robot)
    client = robot.node.create_client(Ask, 'language/ask')
    assert not client.wait_for_service(0.5) and not node.host.engine.kv.streams.live()
