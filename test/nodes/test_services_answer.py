"""The services of the suite answer over ROS."""

from embodied_kv.errors import ErrorCode
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.srv import Ask, Cancel, Evict, KvStats, SetLimits

SUITE = (Perception, Action, Language)


def ask(robot, question='what is red?', **fields):
    return robot.call(Ask, 'language/ask', question=question, **fields)


def said(robot, stream):
    return [text for text in robot.texts if text.stream == stream]


def ended(robot, stream):
    return next((text.reason for text in said(robot, stream) if text.finished), '')


def begin(robot, **parameters):
    """Start a suite without prompts and wait for its first frame; return its nodes."""
    nodes = robot.up(*SUITE, prompt_interval_frames=0, **parameters)
    robot.until(lambda: robot.handles)
    return nodes


def never_ends(robot):
    """Suspend decoding, so that streams stay."""
    EngineHost._shared.engine.decode_fits = lambda now: False


def test_an_answer_streams_under_the_number_that_ask_returned(robot):
    begin(robot)
    response = ask(robot, max_tokens=5)
    assert response.success and response.stream > 0, response.message
    robot.until(lambda: ended(robot, response.stream))
    texts = said(robot, response.stream)
    assert {text.query for text in texts} == {'what is red?'}
    assert texts[-1].tokens <= 5


def test_a_sampled_answer_depends_on_its_seed_alone(robot):
    begin(robot)
    EngineHost._shared.engine.policy.tokenizer.eos = -1

    def answer(seed):
        response = ask(robot, max_tokens=12, temperature=2.0, seed=seed)
        robot.until(lambda: ended(robot, response.stream), show=False)
        return ''.join(text.text for text in said(robot, response.stream))

    robot.more(robot.handles)
    first, same, other = answer(1), answer(1), answer(2)
    assert first == same != other


def test_a_question_that_cannot_be_answered_says_why(robot):
    _, _, language = robot.up(*SUITE, prompt_interval_frames=0)
    before = ask(robot)
    assert not before.success and 'there is no frame to ask about' in before.message
    robot.until(lambda: robot.handles)
    empty = ask(robot, ' ')
    assert not empty.success and 'the question is empty' in empty.message
    long = ask(robot, 'why ' * 2500)
    assert not long.success and 'shorten it' in long.message
    cold = ask(robot, temperature=-1.0)
    assert (
        not cold.success and 'temperature must be finite and at least 0 (got -1.0)' in cold.message
    )
    language.trigger_deactivate()
    silent = ask(robot)
    assert not silent.success and 'must be active' in silent.message


def test_a_question_about_a_frame_long_gone_is_refused(robot):
    perception, _, _ = begin(robot)
    perception.trigger_deactivate()
    robot.spin(1.6)
    response = ask(robot)
    assert (response.success, response.error_code) == (False, ErrorCode.STALE_FRAME)
    assert 'there is no frame to ask about' in response.message


def test_cancel_ends_a_stream_once(robot):
    begin(robot)
    never_ends(robot)
    stream = ask(robot).stream
    assert robot.call(Cancel, 'language/cancel', stream=stream).success
    robot.until(lambda: ended(robot, stream) == 'cancelled', show=False)
    again = robot.call(Cancel, 'language/cancel', stream=stream)
    assert not again.success and again.message == f'no live stream {stream}'
    assert not robot.call(Cancel, 'language/cancel', stream=10_000).success


def test_stats_say_what_the_manager_says(robot):
    begin(robot)
    never_ends(robot)
    ask(robot)
    response = robot.call(KvStats, 'kv/stats')
    assert response.success and response.message
    stats = EngineHost._shared.engine.kv.stats()
    for name in ('rows', 'rows_reserved', 'streams', 'streams_max', 'language_rows_max', 'bytes'):
        assert getattr(response, name) == getattr(stats, name), name
    assert response.streams == 1 and response.prefills > 0 and response.bytes_used > 0
    assert response.prefills_shared >= 1 and response.seconds_saved > 0


def test_set_budget_ends_the_streams_above_it(robot):
    begin(robot)
    never_ends(robot)
    asked = [ask(robot).stream for _ in range(2)]
    response = robot.call(SetLimits, 'kv/set_limits', rows=-1, streams=1)
    assert response.success and (response.rows, response.streams) == (14, 1)
    robot.until(lambda: any(ended(robot, stream) for stream in asked), show=False)
    assert sorted(ended(robot, stream) for stream in asked) == ['', 'evicted']
    wrong = robot.call(SetLimits, 'kv/set_limits', rows=99, streams=-1)
    assert (
        not wrong.success and 'prefix rows of language must be 0 to 14 (got 99)' in wrong.message
    )


def test_set_budget_takes_a_share_per_consumer(robot):
    begin(robot)
    engine = EngineHost._shared.engine
    kv = engine.kv
    engine.decode_fits = lambda now: any(
        not stream.lease.is_copy for stream in kv.streams.live()
    )  # decode until the stream is a copy
    response = robot.call(SetLimits, 'kv/set_limits', language_keep_ratio=0.25)
    assert response.success and (response.rows, response.streams) == (14, 16)
    assert (response.language_keep_ratio, response.action_keep_ratio) == (0.25, 1.0)
    stream = ask(robot).stream
    robot.until(lambda: kv.streams.get(stream).lease.is_copy, show=False)
    assert robot.call(KvStats, 'kv/stats').compressed == 1
    wrong = robot.call(SetLimits, 'kv/set_limits', streams=3, action_keep_ratio=2.0)
    assert not wrong.success and 'must be in [0.01, 1]' in wrong.message
    assert kv.streams_max == 16  # no limit was changed


def test_evict_ends_one_the_oldest_or_all(robot):
    begin(robot)
    never_ends(robot)
    first, second, third, fourth = (ask(robot).stream for _ in range(4))
    assert robot.call(Evict, 'kv/evict', stream=third, all=False).ended == 1
    robot.until(lambda: ended(robot, third) == 'evicted', show=False)
    assert robot.call(Evict, 'kv/evict', stream=0, all=False).ended == 1
    robot.until(lambda: ended(robot, first) == 'evicted', show=False)
    assert robot.call(Evict, 'kv/evict', stream=0, all=True).ended == 2
    robot.until(lambda: ended(robot, second) and ended(robot, fourth), show=False)
    gone = robot.call(Evict, 'kv/evict', stream=third, all=False)
    assert not gone.success and f'no live stream {third}' in gone.message
    assert robot.call(Evict, 'kv/evict', stream=0, all=True).ended == 0
    EngineHost._shared.engine.kv.check_integrity()


def test_evict_frees_the_rows_of_superseded_frames(robot):
    begin(robot)
    never_ends(robot)
    ask(robot)
    robot.more(robot.handles, 3)
    assert robot.call(Evict, 'kv/evict', stream=0, all=True).rows_freed >= 1
