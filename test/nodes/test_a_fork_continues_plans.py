"""`capsule/fork` of kind plan answers once per branch; memory and planner stay as they are."""

from memory_suite import QUESTION, TABLE, begin, done, segments, texts

from embodied_kv.errors import ErrorCode
from embodied_kv.nodes.session import Session
from embodied_kv.srv import CapsuleDrop, CapsuleFork, CapsuleSnapshot

OTHER = 'where is the red cube?'


def fork(robot, **given):
    return robot.call(CapsuleFork, 'capsule/fork', name='here', kind='plan', **given)


def taken(robot, folder, **options):
    """Start memory and session, make a plan and take a capsule; return the node and the plan."""
    memory = begin(robot, folder, Session, **options)
    done(robot, 'upsert', segments=segments(*TABLE))
    plan = done(robot, 'plan', question=QUESTION)
    made = robot.call(CapsuleSnapshot, 'capsule/snapshot', name='here')
    assert made.success, made.message
    return memory, plan


def test_each_branch_has_an_answer(robot, tmp_path):
    memory, plan = taken(robot, tmp_path)
    row, last, known = memory._planning.row.held, memory._planning.last, texts(robot)
    forked = fork(robot, questions=['', QUESTION, OTHER])
    assert forked.success, forked.message
    same, again, other = forked.plans
    assert same == again == plan.text and other
    assert list(forked.complete) == [plan.complete, plan.complete, forked.complete[2]]
    assert forked.message.startswith('3 branches; ') and forked.ms > 0 and not forked.streams
    assert (memory._planning.row.held, memory._planning.last) == (row, last)
    assert texts(robot) == known
    memory.host.engine.kv.check_integrity()

    seeds = dict(questions=[QUESTION] * 3, temperature=2.0, seeds=[4, 5, 4])
    one, two, three = fork(robot, **seeds).plans
    assert one == three != two
    assert done(robot, 'plan', question=QUESTION).text == plan.text


def test_a_fork_that_is_refused_has_a_code(robot, tmp_path):
    memory, _ = taken(robot, tmp_path)
    for given, code, message in (
        (dict(), ErrorCode.INVALID_ARGUMENT, 'a fork needs at least one branch'),
        (dict(branches=65), ErrorCode.INVALID_ARGUMENT, 'branches must be at most 64'),
        (dict(branches=2, questions=[OTHER]), ErrorCode.INVALID_ARGUMENT, '1 questions for 2'),
        (dict(branches=1, temperature=-1.0), ErrorCode.INVALID_ARGUMENT, 'temperature must be'),
        (dict(branches=1, temperature=1.0), ErrorCode.INVALID_ARGUMENT, 'must be incomplete'),
        (dict(questions=['what? ' * 300]), ErrorCode.INVALID_ARGUMENT, 'must fit a row of 512'),
    ):
        refused = fork(robot, **given)
        assert not refused.success and message in refused.message, refused.message
        assert refused.error_code == code and not refused.plans
    dropped = robot.call(CapsuleDrop, 'capsule/drop', name='here')
    assert dropped.success and fork(robot, branches=1).error_code == ErrorCode.NOT_FOUND
    memory.host.engine.kv.check_integrity()


def test_without_a_second_row_there_are_no_branches_of_plans(robot, tmp_path):
    taken(robot, tmp_path, plan_forks=False)
    refused = fork(robot, branches=1)
    assert refused.error_code == ErrorCode.NO_ROOM and 'set plan_forks' in refused.message
