"""Memory stores observations of any node, answers of language, and results of tasks."""

from types import SimpleNamespace

from memory_suite import begin, done, segments, texts
from rclpy.parameter import Parameter
from std_msgs.msg import String

from embodied_kv.demo.domain import DONE, TabletopDomain
from embodied_kv.demo.sim.language import HELD, NARRATE, SUBTASK
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.msg import MemorySegment, TextDelta
from embodied_kv.nodes.common.lifecycle_node import OK, WARN
from embodied_kv.planning.notes import INSTRUCTION_DELAY, NoteTaker

PUT = 'put the red cube into the blue bin'


def test_what_is_observed_is_remembered_and_nonsense_is_counted(robot, tmp_path):
    node = begin(robot, tmp_path)
    observe = robot.node.create_publisher(MemorySegment, 'memory/observe', 10)
    robot.until(observe.get_subscription_count, show=False)
    for segment in segments(('a', 'thing', 'x'), ('mug', 'object', 'mug: on the left table')):
        observe.publish(segment)
    robot.until(lambda: texts(robot), show=False)
    assert texts(robot) == {'mug': 'mug: on the left table'}
    assert node.warning_counts['segment'] == 1
    assert node.report()[1] == 'not all is remembered'


def test_language_and_instructions_write_memory(robot, tmp_path):
    begin(robot, tmp_path)
    speak = robot.node.create_publisher(TextDelta, 'language/text', 10)
    robot.until(lambda: speak.get_subscription_count() > 1, show=False)

    def say(query, text, reason='eos', stream=1):
        message = robot.stamped(
            TextDelta(stream=stream, query=query), robot.now() + INSTRUCTION_DELAY
        )
        for part in (text[:3], text[3:]):
            message.text, message.finished = part, part == text[3:]
            message.reason = reason if message.finished else ''
            speak.publish(message)

    robot.instruction.publish(String(data=PUT))
    robot.spin(0.3)
    say(HELD, ' the red cube')
    robot.until(lambda: texts(robot).get('robot') == 'robot: holds the red cube', show=False)
    say(HELD, ' nothing', reason='cancelled')
    say(SUBTASK, f' {DONE}')
    say(NARRATE, ' the red cube is in the blue bin')
    robot.until(lambda: 'red cube' in texts(robot), show=False)
    assert texts(robot) == {
        'robot': 'robot: holds the red cube',
        'task 1': f'task 1: {PUT}',
        'red cube': 'red cube: in the blue bin',
    }
    assert {s.kind for s in done(robot, 'query').segments} == {'agent', 'task', 'object'}


def test_computing_ahead_may_change_while_it_runs(robot, tmp_path):
    node = begin(robot, tmp_path)
    done(robot, 'upsert', segments=segments(('mug', 'object', 'mug: on the left table')))
    robot.spin(0.7)
    assert done(robot, 'stats').units_kept == 0
    node.set_parameters([Parameter('precompute', value=True)])
    robot.until(lambda: done(robot, 'stats').units_kept == 1, show=False)


def test_kv_that_was_not_computed_is_a_warning_until_it_is(robot, tmp_path, monkeypatch):
    node = begin(robot, tmp_path, precompute=True)

    def refuse(_):
        raise RobotMemoryError('the server is away')

    with monkeypatch.context() as patch:
        patch.setattr(node._planning, 'warm', refuse)
        robot.until(lambda: node.report()[0] == WARN, show=False)
        assert node.report()[1] == 'not precomputed: the server is away'
    robot.until(lambda: node.report()[0] == OK, show=False)


def test_a_task_is_recorded_once_when_it_is_done():
    memory = NoteTaker(TabletopDomain(), 48)
    assert memory.hear(SUBTASK, DONE, 10**9) == [], 'no task was told'
    assert memory.tell(PUT, 10**9) == []
    assert memory.hear(SUBTASK, DONE, 10**9 + INSTRUCTION_DELAY - 1) == [], 'of the task before'
    assert memory.hear(NARRATE, 'I carry the red cube to the blue bin', 2 * 10**9) == []
    assert memory.hear(SUBTASK, DONE, 2 * 10**9) == [('task 1', 'task', f'task 1: {PUT}')]
    assert memory.hear(SUBTASK, DONE, 3 * 10**9) == []
    assert memory.tell(PUT, 4 * 10**9) == [], 'it is in force already'
    assert memory.tell('pick up the mug', 5 * 10**9) == []
    unfinished = ('task 2', 'task', 'task 2: pick up the mug, not finished')
    assert memory.tell('reach the plate', 6 * 10**9) == [unfinished]


def test_a_task_that_is_given_again_after_its_end_is_recorded_again():
    memory = NoteTaker(TabletopDomain(), 48)
    memory.tell(PUT, 0)
    assert memory.hear(SUBTASK, DONE, 10**9)
    memory.tell('', 2 * 10**9)
    lies = [('red cube', 'object', 'red cube: in the blue bin')]
    assert memory.hear(NARRATE, 'the red cube is in the blue bin', 2 * 10**9) == lies
    memory.tell(PUT, 3 * 10**9)
    assert memory.hear(SUBTASK, DONE, 4 * 10**9) == [('task 2', 'task', f'task 2: {PUT}')]
    memory.tell('', 5 * 10**9), memory.tell(PUT, 6 * 10**9)
    unfinished = ('task 3', 'task', f'task 3: {PUT}, not finished')
    assert memory.tell('pick up the mug', 7 * 10**9) == [unfinished]


def test_a_task_that_is_given_again_after_a_mission_is_recorded_again():
    memory = NoteTaker(TabletopDomain(), 48)
    memory.follow_mission(True, 0), memory.tell(PUT, 10**9)
    memory.conclude(f'{PUT}, from the table'), memory.tell('', 2 * 10**9)
    memory.follow_mission(False, 3 * 10**9), memory.tell(PUT, 4 * 10**9)
    assert memory.hear(SUBTASK, DONE, 5 * 10**9) == [('task 2', 'task', f'task 2: {PUT}')]


def test_a_task_that_is_interrupted_by_a_pause_is_one_task():
    memory = NoteTaker(TabletopDomain(), 48)
    memory.tell(PUT, 0), memory.tell('', 10**9), memory.tell(PUT, 2 * 10**9)
    assert memory.hear(SUBTASK, DONE, 3 * 10**9) == [('task 1', 'task', f'task 1: {PUT}')]


def test_what_is_narrated_of_a_task_that_is_done_is_where_things_are():
    memory = NoteTaker(TabletopDomain(), 0)
    memory.tell(PUT, 0)
    assert memory.hear(SUBTASK, DONE, 10**9) == []
    lies = [('red cube', 'object', 'red cube: in the blue bin')]
    assert memory.hear(NARRATE, 'the red cube is in the blue bin', 10**9) == lies
    for where in ('on the table', 'next to the green cube'):
        lies = [('red cube', 'object', f'red cube: {where}')]
        assert memory.hear(NARRATE, f'the red cube is {where}', 10**9) == lies
    held = [('red cube', 'object', 'red cube: held by the robot')]
    assert memory.hear(NARRATE, 'I hold the red cube', 10**9) == held
    assert memory.hear(NARRATE, 'I am above the red cube', 10**9) == []
    memory.tell('push the red cube to the left', 2 * 10**9)
    assert memory.hear(NARRATE, 'the red cube is on the left', 3 * 10**9) == []


def test_what_the_robot_holds_is_told():
    memory = NoteTaker(TabletopDomain(), 48)
    assert memory.hear(HELD, ' nothing', 0) == [('robot', 'agent', 'robot: holds nothing')]
    assert memory.hear(HELD, ' ', 0) == []
    assert memory.hear('Is it done?', 'yes', 0) == []


def test_records_take_the_place_of_the_oldest():
    known = [(f'task {n}', 10 - n) for n in (1, 2, 3)]
    memory = NoteTaker(TabletopDomain(), 4, [*known, ('plan', 0)])
    written = []
    for i in range(7):
        written += memory.tell(f'reach {i}', i)
    assert [id for id, _, _ in written] == [
        'task 4',
        'task 3',
        'task 2',
        'task 1',
        'task 4',
        'task 3',
    ]


def test_a_task_that_is_concluded_has_one_record_and_says_where_it_moved_what_from():
    memory = NoteTaker(TabletopDomain(), 48)
    memory.tell(PUT, 0)
    assert memory.hear(SUBTASK, DONE, 10**9) == [('task 1', 'task', f'task 1: {PUT}')]
    assert memory.conclude(f'{PUT}, from the table') == [
        ('task 1', 'task', f'task 1: {PUT}, from the table'),
        ('last red cube', 'note', 'last move of the red cube: task 1'),
    ]
    memory.tell('reach the plate', 2 * 10**9)
    unfinished = [('task 2', 'task', 'task 2: reach the plate, not finished')]
    assert memory.conclude('reach the plate, not finished') == unfinished
    assert memory.tell('pick up the mug', 3 * 10**9) == [], 'it was concluded'
    other = [('task 3', 'task', 'task 3: reach the red cube')]
    assert memory.conclude('reach the red cube') == other, 'somebody else gave it'
    mug = [('task 4', 'task', 'task 4: pick up the mug')]
    assert memory.conclude('pick up the mug') == mug, 'it replaces no record of another task'


def test_answers_tell_where_things_are_whoever_asked():
    memory = NoteTaker(TabletopDomain(), 48)
    red = [('red cube', 'object', 'red cube: on the green plate')]
    assert memory.hear('Where is the red cube?', 'on the green plate', 0) == red
    held = [('red cube', 'object', 'red cube: held by the robot')]
    assert memory.hear('Where is the red cube?', 'held by the robot', 0) == held
    bin = [('blue bin', 'place', 'blue bin: holds the red cube')]
    assert memory.hear('What is in the blue bin?', 'the red cube', 0) == bin
    assert memory.hear('Where is the red cube?', 'yes', 0) == []


def test_a_task_without_an_id_gets_its_number(robot, tmp_path):
    begin(robot, tmp_path)
    for text in ('put the red cube into the blue bin, from the table', 'reach the red cube'):
        done(robot, 'upsert', segments=segments(('', 'task', text)))
    assert texts(robot) == {
        'task 1': 'task 1: put the red cube into the blue bin, from the table',
        'last red cube': 'last move of the red cube: task 1',
        'task 2': 'task 2: reach the red cube',
    }


def test_an_answer_of_a_restored_stream_is_stored_whole(robot, tmp_path):
    """A delta of a restored stream has only the text since the capsule."""
    node = begin(robot, tmp_path)
    speak = robot.node.create_publisher(TextDelta, 'language/text', 10)
    robot.until(lambda: speak.get_subscription_count() > 1, show=False)
    engine = node.host.engine
    stream = SimpleNamespace(id=77, tokens=engine.policy.tokenizer.encode(' the red'))
    engine.detokenizer.resume(stream, len(stream.tokens))
    node.host.session(node.robot).participants.on_resumed([stream])
    tail = TextDelta(stream=77, query=HELD, text=' cube', finished=True, reason='eos')
    speak.publish(robot.stamped(tail, robot.now() + INSTRUCTION_DELAY))
    robot.until(lambda: 'robot' in texts(robot), show=False)
    assert texts(robot) == {'robot': 'robot: holds the red cube'}
