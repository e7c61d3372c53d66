"""The services of the memory node answer direct calls."""

import pytest
from memory_suite import (
    QUESTION,
    SERVICES,
    TABLE,
    begin,
    call,
    done,
    parameters,
    segments,
    texts,
)

from embodied_kv.nodes.memory import Memory


def test_segments_are_kept_found_changed_and_forgotten(robot, tmp_path):
    begin(robot, tmp_path)
    made = done(robot, 'upsert', segments=segments(*TABLE))
    assert (made.changed, made.units_invalidated) == (3, 0)
    assert made.message == '3 of 3 segments are new or changed; the KV of 0 units is invalid'
    assert [(s.id, s.version, s.step) for s in made.segments] == [(id, 1, 0) for id, *_ in TABLE]
    found = done(robot, 'query', question='green ball', segments=1)
    assert [s.id for s in found.segments] == ['green ball'] and found.scores[0] > 0.5
    assert list(found.grouped) == [False] and found.message == TABLE[2][2]
    assert [s.id for s in done(robot, 'query', kind='place').segments] == ['blue bin']
    changed = done(robot, 'upsert', segments=segments(('red cube', 'object', 'red cube: gone')))
    assert (changed.changed, changed.segments[0].version) == (1, 2)
    assert 'red cube is removed' in done(robot, 'remove', id='red cube').message
    assert texts(robot).keys() == {'blue bin', 'green ball'}


def test_a_plan_says_what_it_took(robot, tmp_path):
    node = begin(robot, tmp_path)
    done(robot, 'upsert', segments=segments(*TABLE))
    first, second = (done(robot, 'plan', question=QUESTION) for _ in range(2))
    assert first.text == second.text and (first.units_computed, second.units_computed) == (3, 0)
    assert sorted(second.segments) == sorted(id for id, *_ in TABLE)
    assert second.method == 'keep' and len(second.computed) == len(second.loaded) == 4
    assert second.computed[0] == second.tokens and second.loaded[3] > 0
    assert 0 < second.first_token_ms <= second.ms and second.retries == 0
    assert '3 segments in view, ' in second.message
    full = done(robot, 'plan', question=QUESTION, method='full', segments=1)
    assert len(full.segments) == 1 and set(full.computed) == {full.tokens}
    stats = done(robot, 'stats')
    assert (stats.segments, stats.units, stats.units_kept, stats.plans) == (3, 3, 3, 3)
    assert stats.bytes > 0 and stats.units_computed == 3 and stats.step == 0
    assert list(stats.constructions) == ['groups'] and list(stats.invalidated) == [0]
    assert stats.message.startswith('3 segments in 0 static and ')
    assert node.report()[1] == 'memory: 3 segments'


def test_steps_pass_and_kv_is_computed_ahead(robot, tmp_path):
    begin(
        robot,
        tmp_path,
        world_step_seconds=0.05,
        precompute=True,
        group_stable_steps=2,
        min_group_similarity=-1.0,
    )
    done(robot, 'upsert', segments=segments(*TABLE))
    robot.until(lambda: done(robot, 'stats').groups_static == 1, show=False)
    robot.until(lambda: done(robot, 'stats').units_kept >= 1, show=False)
    plan = done(robot, 'plan', question=QUESTION)
    assert plan.units_computed == 0 and done(robot, 'stats').step >= 2


def test_refusal_is_one_sentence(robot, tmp_path):
    begin(robot, tmp_path)
    done(robot, 'upsert', segments=segments(*TABLE))
    known = texts(robot)
    for verb, fields, message in (
        ('upsert', dict(segments=segments(('a', 'thing', 'x'))), 'must be one of object, '),
        ('upsert', dict(segments=segments(('', 'note', 'x'))), 'segment id must be text'),
        ('upsert', dict(segments=segments(('a', 'note', ''))), 'must be text'),
        (
            'upsert',
            dict(segments=segments(*TABLE, TABLE[0])),
            'ids of one change must be distinct',
        ),
        (
            'upsert',
            dict(segments=segments(('a', 'note', 'x' * 401))),
            'must have at most 400 tokens',
        ),
        ('remove', dict(id='nowhere'), "segment 'nowhere' does not exist"),
        ('query', dict(kind='thing'), 'must be one of object'),
        ('plan', dict(question=' '), 'question must not be empty'),
        ('plan', dict(question='x' * 600), 'shorten the question'),
        ('plan', dict(question=QUESTION, method='magic'), 'method must be one of auto, keep'),
    ):
        response = call(robot, verb, **fields)
        assert not response.success and message in response.message, (verb, response.message)
        assert '\n' not in response.message
    assert texts(robot) == known
    assert done(robot, 'plan', question=QUESTION).text


def test_an_empty_memory_answers(robot, tmp_path):
    begin(robot, tmp_path)
    plan = done(robot, 'plan', question=QUESTION)
    assert list(plan.segments) == [] and plan.units_computed == 0
    assert done(robot, 'query').message == 'nothing'


def test_memory_outlives_the_node(robot, tmp_path):
    node = begin(robot, tmp_path)
    done(robot, 'upsert', segments=segments(*TABLE))
    before = done(robot, 'plan', question=QUESTION)
    for step in ('deactivate', 'cleanup', 'configure', 'activate'):
        assert getattr(node, f'trigger_{step}')().name == 'SUCCESS'
    after = done(robot, 'plan', question=QUESTION)
    assert (after.text, after.units_computed, after.computed) == (before.text, 0, before.computed)


def test_each_namespace_has_a_folder_of_its_own(robots, tmp_path):
    left, right = robots(), robots()
    begin(left, tmp_path)
    begin(right, tmp_path)
    done(left, 'upsert', segments=segments(TABLE[0]))
    assert list(texts(left)) == ['red cube'] and texts(right) == {}
    assert (tmp_path / 'memory' / left.namespace[1:] / 'memory.sqlite').exists()


def test_inactive_node_refuses_with_its_state(robot, tmp_path):
    node = begin(robot, tmp_path)
    node.trigger_deactivate()
    for verb in SERVICES:
        response = call(robot, verb)
        assert (
            not response.success
            and response.message == 'memory must be active (got inactive); activate it first'
        )


@pytest.mark.parametrize(
    ('name', 'value', 'said'),
    [
        ('planner', '/nowhere', '/nowhere'),
        ('storage_directory', '/proc/nowhere', '/proc/nowhere'),
        ('text_encoder', 'magic', 'encoder must be minilm, hashing'),
        ('reuse_method', 'magic', 'method must be one of'),
        ('load_policy', 'balanced', 'parameter load_policy was removed'),
        ('recompute_ratio', 0.1, 'recompute_ratio must be in'),
        ('max_context_tokens', 512, 'must leave room for a question in a row of 512'),
        ('world_step_seconds', -1.0, 'parameter world_step_seconds'),
    ],
)
def test_a_wrong_parameter_fails_configure(robot, capfd, tmp_path, name, value, said):
    node = robot.bring(Memory, **{**parameters(tmp_path), name: value})
    assert node.trigger_configure().name == 'FAILURE'
    complaint = capfd.readouterr().err
    assert 'configure failed:' in complaint and said in complaint
    assert 'Traceback' not in complaint


def test_a_memory_of_another_planner_is_refused_or_renewed(robots, capfd, tmp_path):
    robot = robots()
    node = begin(robot, tmp_path)
    done(robot, 'upsert', segments=segments(*TABLE))
    done(robot, 'plan', question=QUESTION)
    node.trigger_deactivate()
    node.trigger_cleanup()
    again = robots(robot.namespace)
    other = again.bring(Memory, **parameters(tmp_path, seed=4))
    assert other.trigger_configure().name == 'FAILURE'
    assert 'set discard_foreign_kv, which keeps the segments' in capfd.readouterr().err
    begin(again, tmp_path, seed=4, discard_foreign_kv=True)
    assert done(again, 'stats').units_kept == 0 and len(texts(again)) == 3
