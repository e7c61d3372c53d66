"""The capsule of a robot without a model contains a capsule of its policy server.

It can be restored at another server with the same engine.
"""

import pytest
from remote_suite import PATIENCE, PlainServer, actions, fresh, running_server

from embodied_kv.errors import ErrorCode
from embodied_kv.nodes.remote.action import RemoteAction
from embodied_kv.nodes.remote.robot import RemoteSession
from embodied_kv.srv import (
    CapsuleFork,
    CapsuleList,
    CapsuleRestore,
    CapsuleRollback,
    CapsuleSnapshot,
)

CALM = {'preset': 'tiny', 'server__reply_timeout': PATIENCE, 'max_chunk_age': 60.0}
CALM |= {
    'missed_chunk_limit': 1000,
    'camera_timeout': 60.0,
    'max_action_resume_age': 3600.0,
    'max_planner_resume_age': 3600.0,
}


def up(robot, address, folder):
    return robot.up(RemoteAction, RemoteSession, capsule_directory=str(folder), **CALM | address)


def at(opened):
    return {'server__address': f'ws://127.0.0.1:{opened.port}'}


def call(robot, kind, service, **fields):
    robot.show()
    return robot.call(kind, service, **fields)


def test_a_rollback_takes_the_server_back_to_the_round_of_the_snapshot(robot, tmp_path):
    with running_server('tabletop') as opened:
        up(robot, at(opened), tmp_path)
        robot.until(lambda: fresh(robot) >= 3)
        (session,) = opened.sessions._open.values()
        made = call(robot, CapsuleSnapshot, 'capsule/snapshot', name='home')
        assert made.success and made.bytes > 10_000, made.message
        kept, tasks, count = session.next, session.tasks, fresh(robot)
        robot.until(lambda: session.next > kept + 3)
        back = call(robot, CapsuleRollback, 'capsule/rollback', name='home')
        assert back.success and back.depth == 'planner', back.message
        assert session.tasks == tasks + 1 and session.first <= kept
        robot.until(lambda: fresh(robot) > count + 3)


def test_a_capsule_on_disk_is_restored_at_another_server(robot, tmp_path):
    with running_server('tabletop') as opened:
        up(robot, at(opened), tmp_path)
        robot.until(lambda: fresh(robot) >= 2)
        made = call(robot, CapsuleSnapshot, 'capsule/snapshot', name='home', tier='disk')
        assert made.success, made.message
        port = opened.port
    gone = call(robot, CapsuleRollback, 'capsule/rollback', name='home')
    assert not gone.success and gone.error_code == ErrorCode.UNAVAILABLE, gone.message
    count = fresh(robot)
    with running_server('tabletop', port=port) as opened:
        robot.until(lambda: fresh(robot) > count)
        back = call(robot, CapsuleRestore, 'capsule/restore', name='home')
        assert back.success and back.depth in ('actor', 'planner'), back.message
        assert not back.streams
        robot.until(lambda: fresh(robot) > count + 2)


def test_a_server_with_another_engine_refuses_it_and_the_robot_goes_on(robot, tmp_path):
    with running_server('tabletop') as opened:
        up(robot, at(opened), tmp_path)
        robot.until(lambda: fresh(robot) >= 2)
        assert call(robot, CapsuleSnapshot, 'capsule/snapshot', name='home').success
        port = opened.port
    with running_server('tabletop', engine={'euler_steps': 5}, port=port):
        count = fresh(robot)
        robot.until(lambda: fresh(robot) > count)
        back = call(robot, CapsuleRestore, 'capsule/restore', name='home')
        assert not back.success and 'euler_steps' in back.message
        assert back.error_code == ErrorCode.MISMATCH
        robot.until(lambda: fresh(robot) > count + 2)


def test_a_plain_server_has_no_capsules(robot, tmp_path):
    with PlainServer(lambda request: actions(7, count=50)) as server:
        up(robot, {'server__address': server.address}, tmp_path)
        robot.until(lambda: fresh(robot) >= 1)
        made = call(robot, CapsuleSnapshot, 'capsule/snapshot', name='home')
        assert not made.success and made.error_code == ErrorCode.UNAVAILABLE
        assert 'use the policy server of this package' in made.message
        assert not call(robot, CapsuleList, 'capsule/list').capsules


@pytest.mark.parametrize('kind', ['', 'streams', 'plan', 'chunk'])
def test_a_server_forks_nothing(robot, tmp_path, kind):
    with running_server('tabletop') as opened:
        up(robot, at(opened), tmp_path)
        robot.until(lambda: fresh(robot) >= 1)
        assert call(robot, CapsuleSnapshot, 'capsule/snapshot', name='home').success
        forked = dict(name='home', kind=kind, branches=3)
        grown = robot.call(CapsuleFork, 'capsule/fork', **forked)
        assert not grown.success and grown.error_code == ErrorCode.UNAVAILABLE
        assert 'a policy server cannot fork a capsule' in grown.message
