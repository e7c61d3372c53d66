"""A robot without a model uses the memory and planner of its policy server like its own."""

from pathlib import Path

import pytest
from memory_suite import QUESTION, TABLE, call, done, parameters, segments, texts
from remote_suite import PATIENCE, PlainServer, actions, running_server

from embodied_kv.errors import ErrorCode
from embodied_kv.nodes.remote.robot import RemoteMemory
from embodied_kv.planning.config import MemoryParams, PlanningConfig
from embodied_kv.serving.memories import Memories


def kept(folder, rows=2, **more):
    """Return a function that makes the memories of a server, with a planner of random weights."""
    given = parameters(folder, **more)
    own = {
        n: given.pop(n)
        for n in ('storage_directory', 'planner', 'precompute', 'world_step_seconds')
    }
    params, config = MemoryParams(**own), PlanningConfig(**given)

    def made(device, kv_budget):
        return Memories(Path(params.planner), params, config, rows, device, kv_budget)

    return made


def remembering(robot, opened, **more):
    options = {'server__reply_timeout': PATIENCE, 'preset': 'tiny', 'world_step_seconds': 0.0}
    options |= {'server__address': f'ws://127.0.0.1:{opened.port}', 'precompute': False}
    node = robot.up(RemoteMemory, **options | more)
    robot.until(lambda: node._server.policy.is_connected, show=False)
    return node


def test_segments_are_kept_found_changed_and_forgotten(robot, tmp_path):
    with running_server('tabletop', memory=kept(tmp_path)) as opened:
        remembering(robot, opened)
        made = done(robot, 'upsert', segments=segments(*TABLE))
        assert (made.changed, made.units_invalidated) == (3, 0)
        found = done(robot, 'query', question='green ball', segments=1)
        assert [s.id for s in found.segments] == ['green ball'] and found.scores[0] > 0.5
        changed = segments(('red cube', 'object', 'red cube: gone'))
        assert done(robot, 'upsert', segments=changed).segments[0].version == 2
        assert 'red cube is removed' in done(robot, 'remove', id='red cube').message
        assert texts(robot).keys() == {'blue bin', 'green ball'}
        folder = robot.namespace.strip('/').replace('/', '.')
        assert (tmp_path / 'memory' / folder).is_dir()


def test_a_plan_is_that_of_a_planner_of_its_own(robot, tmp_path):
    with running_server('tabletop', memory=kept(tmp_path)) as opened:
        node = remembering(robot, opened)
        done(robot, 'upsert', segments=segments(*TABLE))
        first, second = (done(robot, 'plan', question=QUESTION) for _ in range(2))
        assert first.text == second.text
        assert (first.units_computed, second.units_computed) == (3, 0)
        assert sorted(second.segments) == sorted(id for id, *_ in TABLE)
        assert second.method == 'keep' and len(second.computed) == len(second.loaded) == 4
        stats = done(robot, 'stats')
        assert (stats.segments, stats.units_kept, stats.plans) == (3, 3, 2)
        assert node.report()[1] == 'memory: 3 segments'


def test_what_it_learnt_is_there_after_the_server_was_replaced(robot, tmp_path):
    with running_server('tabletop', memory=kept(tmp_path)) as opened:
        node = remembering(robot, opened)
        done(robot, 'upsert', segments=segments(*TABLE))
        port = opened.port
    assert call(robot, 'query').error_code == ErrorCode.UNAVAILABLE
    with running_server('tabletop', memory=kept(tmp_path), port=port):
        robot.until(lambda: node._server.policy.is_connected, show=False)
        assert texts(robot).keys() == {id for id, *_ in TABLE}


def test_a_refusal_has_its_reason_and_code(robot, tmp_path):
    with running_server('tabletop', memory=kept(tmp_path)) as opened:
        remembering(robot, opened)
        wrong = call(robot, 'upsert', segments=segments(('x', 'thing', 'a thing')))
        assert not wrong.success and "(got 'thing')" in wrong.message
        assert not call(robot, 'plan', question=' ').success
        assert not call(robot, 'remove', id='nothing').success
        assert done(robot, 'stats').segments == 0


def test_a_memory_that_plans_refuses_another_plan_and_remembers_meanwhile(robot, tmp_path):
    with running_server('tabletop', memory=kept(tmp_path)) as opened:
        remembering(robot, opened)
        done(robot, 'upsert', segments=segments(*TABLE))
        (memory,) = opened.memories._open.values()
        with memory.plans:
            refused = call(robot, 'plan', question=QUESTION)
            assert refused.error_code == ErrorCode.NO_ROOM and 'wait for' in refused.message
            assert texts(robot).keys() == {id for id, *_ in TABLE}
        assert done(robot, 'plan', question=QUESTION).tokens


def test_a_restore_of_the_server_concerns_no_answer_of_the_robot(robot, tmp_path):
    with running_server('tabletop', memory=kept(tmp_path)) as opened:
        node = remembering(robot, opened)
        node.host.session(node.robot).participants.on_resumed([])


def test_a_server_that_ends_ends_its_plans(robot, tmp_path):
    with running_server('tabletop', memory=kept(tmp_path)) as opened:
        remembering(robot, opened)
        done(robot, 'upsert', segments=segments(*TABLE))
        opened.memories.end_plans()
        assert 'the policy server is ending' in call(robot, 'plan', question=QUESTION).message
        assert texts(robot).keys() == {id for id, *_ in TABLE}


@pytest.mark.parametrize('ours', [True, False])
def test_a_server_without_memory_is_named(robot, ours):
    with running_server('tabletop') as mine, PlainServer(lambda request: actions(7)) as plain:
        node = remembering(robot, mine if ours else plain)
        answer = call(robot, 'query')
        assert not answer.success and 'must offer memory' in answer.message
        assert answer.error_code == ErrorCode.UNAVAILABLE
        assert 'must offer memory' in node.report()[1]
        node._remember(lambda: [('cup', 'object', 'a cup')])
        node._advance()
        node._precompute()
        assert not node.warning_counts.keys() & {'advance', 'precompute', 'segment'}


def test_more_memories_than_rows_are_refused(robots, tmp_path):
    with running_server('tabletop', memory=kept(tmp_path, rows=1)) as opened:
        first, second = robots(), robots()
        remembering(first, opened)
        done(first, 'upsert', segments=segments(*TABLE))
        remembering(second, opened)
        refused = call(second, 'query')
        assert refused.error_code == ErrorCode.NO_ROOM and 'planner_rows' in refused.message
        assert texts(first).keys() == {id for id, *_ in TABLE}
