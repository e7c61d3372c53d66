"""A rollback does not change memory, but reports what has changed since the capsule."""

from memory_suite import QUESTION, TABLE, begin, done, segments, texts

from embodied_kv.nodes.session import Session
from embodied_kv.srv import CapsuleRollback, CapsuleSnapshot, MemoryRemove

LEARNT = ('red cube', 'object', 'red cube: in the blue bin')


def taken_and_rolled_back(robot, change):
    """Take a capsule, apply a change, and roll back; return the message of the rollback."""
    taken = robot.call(CapsuleSnapshot, 'capsule/snapshot', name='here')
    assert taken.success, taken.message
    change()
    back = robot.call(CapsuleRollback, 'capsule/rollback', name='here')
    assert back.success, back.message
    return back.message


def test_what_was_learnt_since_stays_and_is_said(robot, tmp_path):
    memory = begin(robot, tmp_path, Session)
    done(robot, 'upsert', segments=segments(*TABLE))
    plan = done(robot, 'plan', question=QUESTION)

    def learn():
        done(robot, 'upsert', segments=segments(LEARNT, ('mug', 'object', 'mug: on the plate')))
        robot.call(MemoryRemove, 'memory/remove', id='green ball')
        done(robot, 'plan', question='where is the mug?')

    message = taken_and_rolled_back(robot, learn)
    assert message.endswith(
        "memory has changed since: 'green ball: in the blue bin' was removed; "
        "'mug: on the plate' is new; "
        "'red cube: in the blue bin' was 'red cube: on the left table'"
    )
    assert texts(robot)['red cube'] == LEARNT[2] and 'green ball' not in texts(robot)
    last = memory.host.session(robot.namespace).parts[-1].freeze().facts['plan']
    assert last['question'] == QUESTION and len(last['prompt']) == plan.tokens


def test_the_same_memory_is_not_worth_a_word(robot, tmp_path):
    begin(robot, tmp_path, Session)
    done(robot, 'upsert', segments=segments(*TABLE))
    message = taken_and_rolled_back(robot, lambda: done(robot, 'plan', question=QUESTION))
    assert 'memory' not in message


def test_a_memory_that_is_not_there_any_more_is_said(robot, tmp_path):
    memory = begin(robot, tmp_path, Session)
    message = taken_and_rolled_back(robot, lambda: (memory.trigger_deactivate(), memory.end()))
    assert message.endswith('no active node resumes its part memory')
