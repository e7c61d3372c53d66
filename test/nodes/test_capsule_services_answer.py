"""The services of the session node answer direct calls."""

import gc
import os
import weakref
from dataclasses import replace

import numpy as np
import pytest
from capsule_suite import ask, begin, ended, engine, said, silent, speaking
from rclpy.parameter import Parameter
from std_msgs.msg import String

from embodied_kv.capsule.disk import Disk
from embodied_kv.errors import ErrorCode
from embodied_kv.nodes.session import Session
from embodied_kv.srv import (
    CapsuleDrop,
    CapsuleFork,
    CapsuleList,
    CapsuleMove,
    CapsulePin,
    CapsuleRestore,
    CapsuleRollback,
    CapsuleSnapshot,
)

SERVICES = {
    'snapshot': CapsuleSnapshot,
    'restore': CapsuleRestore,
    'rollback': CapsuleRollback,
    'fork': CapsuleFork,
    'list': CapsuleList,
    'pin': CapsulePin,
    'move': CapsuleMove,
    'drop': CapsuleDrop,
}


def call(robot, verb, **fields):
    return robot.call(SERVICES[verb], f'capsule/{verb}', **fields)


def done(robot, verb, **fields):
    """Call a service that must succeed; return its response."""
    response = call(robot, verb, **fields)
    assert response.success, response.message
    return response


def test_a_session_is_kept_listed_moved_pinned_and_dropped(robot, tmp_path):
    *_, node = begin(robot, tmp_path)
    made = done(robot, 'snapshot', name='home')
    assert (made.name, made.tier, made.depth) == ('home', 'device', '')
    assert made.bytes > 0 and 0 < made.ms < 1000 and made.boundary > 0
    assert made.message.startswith('capsule home: 0.')
    assert f'at boundary {made.boundary}, stored in the device tier' in made.message
    unnamed = done(robot, 'snapshot')
    assert unnamed.name == f'{engine().kv.frames.process_id[:8]}-{unnamed.boundary}'

    moved = done(robot, 'move', name='home', tier='disk')
    assert (moved.name, moved.bytes, moved.tier) == ('home', made.bytes, 'disk')
    folder = tmp_path / robot.namespace[1:]
    assert sorted(os.listdir(folder)) == ['capsules.lock', 'home.safetensors']
    listed = done(robot, 'list')
    assert 'home (disk)' in listed.message and f'{unnamed.name} (device)' in listed.message
    info = next(capsule for capsule in listed.capsules if capsule.name == 'home')
    assert (info.bytes, info.tier, info.boundary) == (made.bytes, 'disk', made.boundary)
    assert info.saved and info.fits and not info.pinned and info.age >= 0
    assert info.session == f'{engine().kv.frames.process_id[:8]}{robot.namespace}'
    assert len(info.fingerprint) == 32

    _, says, values = node.report()
    assert says == 'capsules: 2' and values['host (MiB)'] == '0.0 of 1024'

    assert done(robot, 'pin', name='home').message == 'capsule home is pinned'
    refused = call(robot, 'drop', name='home')
    assert not refused.success and refused.message == 'capsule home is pinned: unpin it first'
    assert 'may be evicted' in done(robot, 'pin', name='home', pinned=False).message
    assert done(robot, 'drop', name='home').message == 'capsule home is dropped'
    assert os.listdir(folder) == ['capsules.lock']
    assert [capsule.name for capsule in done(robot, 'list').capsules] == [unnamed.name]


def test_restored_streams_are_published_to_their_ends(robot, tmp_path):
    begin(robot, tmp_path, max_tokens=24)
    engine().policy.tokenizer.eos = -1  # streams end only by length
    silent()
    streams = [ask(robot, seed) for seed in (1, 2)]
    done(robot, 'snapshot', name='home')
    speaking()
    robot.until(lambda: all(ended(robot, stream) for stream in streams))
    words = [said(robot, stream) for stream in streams]

    silent()
    late = ask(robot, 3)
    restored = done(robot, 'restore', name='home')
    assert restored.depth in ('actor', 'planner') and len(restored.streams) == 2
    assert restored.message.endswith(f'streams {restored.streams[0]}, {restored.streams[1]}')
    speaking()
    robot.until(lambda: all(ended(robot, stream) for stream in restored.streams))
    assert [said(robot, stream) for stream in restored.streams] == words
    assert ended(robot, late) == 'replaced'
    engine().kv.check_integrity()


def test_each_branch_of_a_fork_says_what_its_seed_says(robot, tmp_path):
    begin(robot, tmp_path, max_tokens=16)
    engine().policy.tokenizer.eos = -1
    silent()
    original = ask(robot, seed=5)
    done(robot, 'snapshot', name='home')
    forked = done(robot, 'fork', name='home', seeds=[5, 6, 7])
    assert (forked.depth, forked.streams_per_branch, len(forked.streams)) == ('planner', 1, 3)
    assert forked.message.startswith('3 branches; going on: streams ')
    speaking()
    robot.until(lambda: all(ended(robot, s) for s in (original, *forked.streams)))
    same, *others = [said(robot, stream) for stream in forked.streams]
    assert same == said(robot, original) not in others
    silent()
    assert len(done(robot, 'fork', name='home', branches=2).streams) == 2


def test_a_fork_of_the_chunk_returns_candidates_that_are_not_executed(robot, tmp_path):
    *_, capsules = begin(robot, tmp_path)
    capsules.set_parameters([Parameter('store_frame', value=True)])
    done(robot, 'snapshot', name='home')
    count = len(robot.chunks)
    forked = done(robot, 'fork', name='home', kind='chunk', seeds=[0, 1, 0])
    chunk = next(c for c in robot.chunks if c.source == c.FRESH)
    assert list(forked.joint_names) == list(chunk.joint_names) and forked.dt == chunk.dt
    candidates = np.reshape(forked.values, (3, forked.chunk_size, len(chunk.joint_names)))
    same, other, again = candidates
    np.testing.assert_array_equal(same, again)
    assert not np.array_equal(same, other) and np.isfinite(candidates).all()
    assert 'candidates for frame' in forked.message and not forked.streams and forked.ms > 0
    original = done(robot, 'fork', name='home', kind='chunk', branches=1)
    np.testing.assert_array_equal(np.ravel(original.values), np.ravel(same))
    assert (original.depth, original.sequence) == ('planner', forked.sequence)
    robot.until(lambda: len(robot.chunks) > count)
    executed = {tuple(c.values) for c in robot.chunks}
    assert not executed & {tuple(other.ravel())}
    engine().kv.check_integrity()
    capsules.set_parameters([Parameter('store_frame', value=False)])
    done(robot, 'snapshot', name='bare')
    refused = call(robot, 'fork', name='bare', kind='chunk', branches=1)
    assert refused.error_code == ErrorCode.NOT_FOUND and 'store_frame' in refused.message


def test_a_capsule_that_its_own_restore_evicts_is_restored(robot, tmp_path, monkeypatch):
    begin(robot, tmp_path)
    done(robot, 'snapshot', name='home', tier='device')
    (session,) = (node for node in robot.suite if isinstance(node, Session))
    restore = session._session.restore

    def evicting(*arguments):
        resumed = restore(*arguments)
        session._registry.drop('home')
        return resumed

    monkeypatch.setattr(session._session, 'restore', evicting)
    assert done(robot, 'restore', name='home').name == 'home'


def test_cleanup_frees_the_capsules(robot, tmp_path):
    begin(robot, tmp_path)
    done(robot, 'snapshot', name='home', tier='host')
    (session,) = (node for node in robot.suite if isinstance(node, Session))
    registry = weakref.ref(session._registry)
    session.trigger_deactivate()
    session.trigger_cleanup()
    gc.collect()
    assert registry() is None


def test_rollback_goes_back_to_the_newest_boundary_and_its_instruction(robot, tmp_path):
    perception, *_ = begin(robot, tmp_path)
    silent()
    ask(robot)
    made = done(robot, 'snapshot', name='home')
    robot.instruction.publish(String(data='push'))
    robot.until(lambda: perception._frames.instruction == 'push')
    back = done(robot, 'rollback')
    assert (back.name, back.depth, back.boundary) == ('home', 'planner', made.boundary)
    assert 'steps back; going on: stream ' in back.message and len(back.streams) == 1
    robot.until(lambda: perception._frames.instruction == 'reach', show=False)


def test_refusal_is_one_sentence(robot, tmp_path):
    begin(robot, tmp_path)
    done(robot, 'snapshot', name='home')
    for verb, fields, message in (
        ('snapshot', dict(name='../home'), "'../home' cannot name a capsule"),
        ('snapshot', dict(name='home'), 'there is a capsule home already: drop it first'),
        ('snapshot', dict(tier='cloud'), "no tier 'cloud'; there are: device, host, disk"),
        ('restore', dict(name='nowhere'), "no capsule 'nowhere'; there is home"),
        ('rollback', dict(name='nowhere'), "no capsule 'nowhere'"),
        ('fork', dict(name='nowhere', branches=1), "no capsule 'nowhere'"),
        ('fork', dict(name='home'), 'a fork needs at least one branch'),
        ('fork', dict(name='home', branches=2, seeds=[1]), '1 seeds for 2 branches'),
        ('fork', dict(name='home', branches=2**32 - 1), 'branches must be at most 16 (got 429'),
        ('fork', dict(name='home', kind='map', branches=1), 'must be one of streams, plan, chunk'),
        ('fork', dict(name='home', kind='chunk', branches=65), 'branches must be at most 64'),
        ('fork', dict(name='home', kind='chunk', branches=2), 'set store_frame of the node'),
        ('fork', dict(name='home', kind='plan', branches=1), 'must have a part memory (got none)'),
        ('fork', dict(name='home', kind='plan', seeds=[1]), 'temperature must be > 0 for seeds'),
        ('fork', dict(name='home', branches=1, temperature=0.5), 'must be empty for kind streams'),
        ('fork', dict(name='home', branches=1, questions=['a']), 'must be empty for kind streams'),
        ('pin', dict(name='nowhere'), "no capsule 'nowhere'"),
        ('move', dict(name='home', tier=''), "no tier ''"),
        ('move', dict(name='nowhere', tier='disk'), "no capsule 'nowhere'"),
        ('drop', dict(name=''), "no capsule ''"),
    ):
        response = call(robot, verb, **fields)
        assert not response.success and message in response.message, (verb, response.message)
        assert '\n' not in response.message
    assert [capsule.name for capsule in done(robot, 'list').capsules] == ['home']


def test_a_capsule_of_another_engine_is_listed_and_refused(robot, tmp_path):
    *_, capsules = begin(robot, tmp_path)
    done(robot, 'snapshot', name='foreign', tier='disk')
    path = tmp_path / robot.namespace[1:] / 'foreign.safetensors'
    ours, other = capsules.host.fingerprint, '0' * 32
    resave(path, other)
    for step in ('deactivate', 'cleanup', 'configure', 'activate'):
        assert getattr(capsules, f'trigger_{step}')().name == 'SUCCESS'
    (info,) = done(robot, 'list').capsules
    assert (info.name, info.fingerprint, info.fits) == ('foreign', other, False)
    for verb, fields in (('restore', {}), ('fork', {'branches': 1})):
        response = call(robot, verb, name='foreign', **fields)
        assert not response.success
        assert f'was made by {other}, this is {ours}' in response.message
    assert done(robot, 'drop', name='foreign').name == 'foreign' and not path.exists()


def resave(path, fingerprint):
    """Save a capsule again, as if an engine with that fingerprint had made it."""
    disk = Disk(path.parent)
    capsule = disk.load(path.stem, disk.entry(path.stem).fingerprint)
    disk.drop(path.stem)
    disk.save(replace(capsule, fingerprint=fingerprint))


def test_inactive_node_refuses_with_its_state(robot, tmp_path):
    *_, capsules = begin(robot, tmp_path)
    capsules.trigger_deactivate()
    for verb in SERVICES:
        response = call(robot, verb)
        assert not response.success
        assert response.message == 'session must be active (got inactive); activate it first'


def test_without_a_folder_there_is_no_disk(robot):
    begin(robot, '')
    refused = call(robot, 'snapshot', name='home', tier='disk')
    assert not refused.success and "no disk tier for 'home'" in refused.message
    assert done(robot, 'snapshot', name='home').tier == 'device'


def test_the_default_tier_may_change_while_it_runs(robot, tmp_path):
    *_, capsules = begin(robot, tmp_path)
    capsules.set_parameters([Parameter('default_tier', value='disk')])
    assert done(robot, 'snapshot', name='home').tier == 'disk'


@pytest.mark.parametrize(
    'name, value, said',
    [
        ('default_tier', 'cloud', "no tier 'cloud'"),
        ('eviction_policy', 'hope', "no policy 'hope'"),
        ('disk_mib', -2, 'parameter disk_mib'),
        ('max_planner_resume_age', 1.0, 'at most max_planner_resume_age, 1.0 s'),
        ('capsule_directory', '/proc/nowhere', '/proc/nowhere'),
    ],
)
def test_a_wrong_parameter_fails_configure(robot, capfd, tmp_path, name, value, said):
    node = robot.bring(Session, **{'capsule_directory': str(tmp_path), name: value})
    assert node.trigger_configure().name == 'FAILURE'
    complaint = capfd.readouterr().err
    assert 'configure failed:' in complaint and said in complaint
    assert 'Traceback' not in complaint
