"""An answer about an old frame, as of a restored stream, overwrites nothing newer in memory."""

from hypothesis import given
from hypothesis import strategies as st
from memory_suite import begin, texts
from rosgraph_msgs.msg import Clock

from embodied_kv.demo.domain import DONE, TabletopDomain
from embodied_kv.demo.sim.language import HELD, SUBTASK
from embodied_kv.msg import TextDelta
from embodied_kv.nodes.common.conversions import stamp
from embodied_kv.planning.notes import INSTRUCTION_DELAY, NoteTaker

SECOND = 10**9
RED, BLUE = 'Where is the red cube?', 'Where is the blue cube?'


def test_an_answer_of_an_older_frame_is_no_news():
    notes = NoteTaker(TabletopDomain(), 48)
    assert notes.hear(HELD, 'nothing', 10) == [('robot', 'agent', 'robot: holds nothing')]
    assert notes.hear(HELD, 'the red cube', 5) == []
    assert notes.hear(HELD, 'the red cube', 10), 'of the same frame the later one counts'


def test_what_a_newer_frame_told_of_another_thing_is_no_matter():
    notes = NoteTaker(TabletopDomain(), 48)
    assert notes.hear(RED, 'in the blue bin', 10)
    assert notes.hear(BLUE, 'on the table', 5)
    assert not notes.hear(RED, 'on the table', 5)


ANSWERS = st.tuples(st.sampled_from([HELD, RED, BLUE]), st.integers(0, 9))


@given(st.lists(ANSWERS))
def test_in_whatever_order_answers_come_the_newest_frame_is_believed(heard):
    notes, known = NoteTaker(TabletopDomain(), 48), {}
    for question, at in heard:
        answer = f'the cube {at}' if question == HELD else f'in the bin {at}'
        known |= {id: text for id, _, text in notes.hear(question, answer, at)}
    newest = {question: max(at for q, at in heard if q == question) for question, _ in heard}
    assert {text.split()[-1] for text in known.values()} == {str(at) for at in newest.values()}
    assert len(known) == len(newest)


def test_of_frames_from_before_it_began_memory_learns_nothing():
    notes = NoteTaker(TabletopDomain(), 48)
    notes.begin(10)
    assert notes.hear(HELD, 'nothing', 9) == [] == notes.hear(RED, 'on the table', 9)
    assert notes.hear(HELD, 'nothing', 10)


def test_where_the_clock_was_set_back_a_task_is_learnt_all_the_same():
    notes = NoteTaker(TabletopDomain(), 48)
    notes.tell('wave', 50 * SECOND)
    notes.begin(10 * SECOND)
    (record,) = notes.hear(SUBTASK, DONE, 10 * SECOND + INSTRUCTION_DELAY)
    assert record[2] == 'task 1: wave'


def test_where_the_clock_is_set_back_memory_goes_on_learning(robot, tmp_path):
    clock = robot.node.create_publisher(Clock, '/clock', 10)
    speak = robot.node.create_publisher(TextDelta, 'language/text', 10)
    node = begin(robot, tmp_path, use_sim_time=True)
    robot.until(lambda: speak.get_subscription_count() and clock.get_subscription_count(), False)

    def say(words, at):
        clock.publish(Clock(clock=stamp(at)))
        robot.until(lambda: node.get_clock().now().nanoseconds == at, show=False)
        said = TextDelta(query=HELD, text=words, finished=True, reason='eos')
        speak.publish(robot.stamped(said, at))
        told = f'robot: holds {words}'
        robot.until(lambda: texts(robot).get('robot') == told, show=False)

    say('nothing', 50 * SECOND)
    say('the red cube', 10 * SECOND)
    robot.node.destroy_publisher(clock)
