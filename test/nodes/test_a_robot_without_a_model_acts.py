"""A robot without a model executes the chunks of any policy server, and rests without chunks."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from remote_suite import (
    AXES,
    LEAVE,
    STALL,
    PlainServer,
    acting,
    actions,
    fresh,
    running_server,
    sources,
)
from std_msgs.msg import String

from embodied_kv.control.command import STOP
from embodied_kv.nodes.common.lifecycle_node import WARN
from embodied_kv.nodes.observation.clock import WorldClock
from embodied_kv.nodes.remote import server_link
from embodied_kv.nodes.remote.action import RemoteAction
from embodied_kv.nodes.remote.server_link import session_id
from embodied_kv.robots.reading import load
from embodied_kv.serving.websocket.calls import ID
from embodied_kv.serving.websocket.extensions import Extensions, meaning

IMAGE = 28  # pixels of the images of the stand-in robot
HERE = 0.1  # rad or m, positions of the stand-in's joints
DT = 0.1


def near(request):
    return actions(AXES, value=HERE, count=50)  # 5 s, enough on a slow machine


def test_a_plain_servers_chunks_move_the_arm_and_only_plain_keys_are_sent(robot):
    with PlainServer(near) as server:
        node = acting(robot, server.address)
        robot.until(lambda: fresh(robot) >= 3)
        assert robot.trajectories and not node.warning_counts['reply']
        chunk = next(chunk for chunk in robot.chunks if chunk.source == 0)
        assert chunk.chunk_size == 50 and list(chunk.joint_names) == list(node.embodiment.axes)
        asked = server.asked[0]
        assert asked.keys() == {'front', 'wrist', 'observation.state', 'prompt'}
        assert asked['prompt'] == 'reach' and asked['front'].shape == (28, 28, 3)
        np.testing.assert_allclose(asked['observation.state'], [*[HERE] * 6, 0.04], atol=1e-6)


def test_our_own_servers_chunks_move_the_arm(robot):
    with running_server('tabletop') as opened:
        node = acting(robot, f'ws://127.0.0.1:{opened.port}', preset='tiny')
        robot.until(lambda: fresh(robot) >= 3)
        assert opened.sessions.values()['sessions'] == 1
        assert not node.warning_counts['reply'] + node.warning_counts['request']


def test_nothing_moves_that_is_not_armed_or_has_nothing_to_do(robot):
    with PlainServer(near) as server:
        acting(robot, server.address, armed=False)
        robot.until(lambda: len(server.asked) >= 3)
        assert not robot.trajectories
        robot.instruction.publish(String(data=''))
        robot.until(lambda: robot.suite[0]._frames.instruction == '')
        count = len(server.asked)
        robot.spin(0.5)
        assert len(server.asked) <= count + 1


def test_a_server_that_is_gone_lets_the_arm_rest_and_comes_back(robot):
    with PlainServer(near) as server:
        port = server.port
        node = acting(robot, server.address, missed_chunk_limit=2)
        robot.until(lambda: fresh(robot) >= 2)
    robot.until(lambda: sources(robot)[-1] == STOP and node._server.policy.problem)
    level, message, _ = node.report()
    assert level >= WARN and f'ws://127.0.0.1:{port}' in message
    count = fresh(robot)
    with PlainServer(near, port=port):
        robot.until(lambda: fresh(robot) >= count + 2)


@pytest.mark.parametrize(
    'wrong', [LEAVE, STALL, 'it failed', b'\xc1'], ids=['leaves', 'stalls', 'refuses', 'garbage']
)
def test_a_server_that_fails_once_is_asked_again(robot, wrong):
    replies = iter([wrong])
    seconds = {'server__reply_timeout': 2.0} if wrong is STALL else {}
    with PlainServer(lambda request: next(replies, near(request))) as server:
        node = acting(robot, server.address, **seconds)
        robot.until(lambda: fresh(robot) >= 2)
        assert node.warning_counts['request'] >= 1 and server.connections >= 2


@pytest.mark.parametrize(
    'wrong',
    [
        actions(AXES - 1),
        actions(AXES, value=np.nan),
        actions(AXES, value=1e9),
        {'actions': 'up'},
        {},
    ],
    ids=['dims', 'NaN', 'beyond any robot', 'words', 'nothing'],
)
def test_a_chunk_that_is_a_lie_is_not_executed(robot, wrong):
    replies = iter([wrong] * 3)
    with PlainServer(lambda request: next(replies, near(request))) as server:
        node = acting(robot, server.address)
        robot.until(lambda: node.warning_counts['reply'] == 3 and fresh(robot) >= 1)
        assert server.connections == 1
        for chunk in robot.chunks:
            assert np.isfinite(chunk.values).all()


def test_a_chunk_far_outside_the_limits_is_refused_with_the_reason(robot):
    with PlainServer(lambda request: actions(AXES, value=50.0, count=50)) as server:
        node = acting(robot, server.address)
        robot.until(lambda: node._control.executor.counters.refused >= 2)
        assert not robot.trajectories and 'far outside the limits' in node._safety.idle_reason(0.0)


def test_a_chunk_a_little_out_of_limits_is_clamped_as_any_other(robot):
    def answer(request):
        """Keep the arm where it is, and close the gripper beyond its limit."""
        values = np.tile(request['observation.state'], (50, 1))
        values[:, -1] = -0.5
        return actions(AXES, value=0.0, count=50) | {'actions': values}

    with PlainServer(answer) as server:
        node = acting(robot, server.address)
        robot.until(lambda: fresh(robot) >= 1)
        limits = node._control.executor.limits
        values = np.array(robot.chunks[-1].values).reshape(-1, AXES)
        assert (values <= limits.upper + 1e-9).all()
        assert node._control.executor.counters.clamped > 0


def test_a_reply_to_an_old_instruction_is_not_executed(robot):
    told = []

    def answer(request):
        if request['prompt'] == 'reach':  # the instruction changes before the chunk arrives
            told.append(robot.suite[0]._frames.publish_instruction('push'))
        return near(request)

    with PlainServer(answer) as server:
        node = acting(robot, server.address)
        robot.until(lambda: fresh(robot) >= 1)
        assert node._stale == len(told) > 0
        assert server.asked[-1]['prompt'] == 'push'


def ours(**odd):
    known = dict(chunk_size=50, action_dim=AXES, dt=DT, leftover=True, deadlines=True)
    return Extensions(**{**known, 'questions': False, 'min_euler_steps': 2, **odd}).metadata


CHUNKS = {'preset': 'pi05'}  # chunks of 50 actions


def repeating(request):
    return actions(AXES, value=HERE, count=50) | {'request_id': request['request_id']}


def test_a_server_that_takes_it_is_told_what_runs_and_how_long_it_may_take(robot):
    with PlainServer(repeating, ours()) as server:
        acting(robot, server.address, server__rtc=True, server__rtc_horizon=6, **CHUNKS)
        robot.until(
            lambda: all(
                any(key in request for request in server.asked)
                for key in ('leftover', 'deadline_ms')
            )
        )
        told = next(request for request in server.asked if 'leftover' in request)
        left, delay = told['leftover'], told['leftover_delay']
        assert left.ndim == 2 and left.shape[1] == AXES and len(left) <= 50
        assert np.isfinite(left).all() and 0 <= delay <= min(len(left), 49)
        assert all(0 < r['deadline_ms'] <= 600 for r in server.asked if 'deadline_ms' in r)


def test_no_deadline_is_told_in_simulated_time(robot, monkeypatch):
    monkeypatch.setattr(WorldClock, 'is_simulated', True)
    with PlainServer(repeating, ours()) as server:
        acting(robot, server.address)
        robot.until(lambda: fresh(robot) >= 3)
        assert not any('deadline_ms' in request for request in server.asked)


@pytest.mark.parametrize(
    ('resize', 'size', 'longer'),
    [
        ('', -1, 8),
        ('pillow', -1, 8),
        ('bilinear', -1, IMAGE),
        ('uint8', -1, IMAGE),
        ('uint8', 9, 9),
    ],
)
def test_images_are_reduced_only_as_the_policy_of_the_server_reduces_them(
    robot, monkeypatch, resize, size, longer
):
    monkeypatch.setattr(server_link, 'OPENPI', 8)
    with PlainServer(repeating, ours(resize=resize)) as server:
        acting(robot, server.address, server__image_size=size, **CHUNKS)
        robot.until(lambda: len(server.asked) >= 2)
        pictures = [x for x in server.asked[-1].values() if getattr(x, 'ndim', 0) == 3]
        assert pictures and all(max(picture.shape) == longer for picture in pictures)


def test_our_own_server_takes_what_runs(robot):
    with running_server('tabletop', engine={'rtc': 'guided'}) as opened:
        node = acting(robot, f'ws://127.0.0.1:{opened.port}', preset='tiny', server__rtc=True)
        robot.until(lambda: fresh(robot) >= 4)
        assert not node.warning_counts['reply'] + node.warning_counts['request']
        assert node.report()[2]['real-time chunking'] == 'on'


@pytest.mark.parametrize(
    'odd, why', [({'action_dim': 5}, '5 numbers'), ({'dt': 0.02}, '50 actions a second')]
)
def test_a_server_of_another_robot_is_refused_by_name(robot, odd, why):
    with PlainServer(repeating, ours(**odd)) as server:
        node = acting(robot, server.address)
        robot.until(lambda: why in node._server.policy.problem)
        robot.spin(0.3)
        assert not server.asked


def test_a_server_whose_actions_mean_something_else_is_refused_by_name(robot):
    own = meaning(load('tabletop'))
    other = own[1], own[0], *own[2:-1], replace(own[-1], kind='velocity', unit='m/s')
    with PlainServer(repeating, ours(action_meaning=other, contract='other_arm')) as server:
        node = acting(robot, server.address)
        robot.until(lambda: 'must mean' in node._server.policy.problem)
        robot.spin(0.3)
        problem = node._server.policy.problem
        assert 'number 0 is shoulder_lift, position in rad there and shoulder_pan' in problem
        assert 'gripper, velocity in m/s there and gripper, position in m here' in problem
        assert 'its contract is other_arm, here tabletop' in problem and not server.asked


@pytest.mark.parametrize(
    'metadata, answer, warns',
    [
        ({}, near, True),
        (ours(), repeating, True),
        (ours(action_meaning=meaning(load('tabletop'))), repeating, False),
    ],
    ids=['plain', 'older', 'ours'],
)
def test_a_server_that_does_not_state_its_actions_is_accepted_with_a_warning(
    robot, monkeypatch, metadata, answer, warns
):
    said = []
    monkeypatch.setattr(RemoteAction, 'log_warning', lambda node, key, line: said.append(line))
    with PlainServer(answer, metadata) as server:
        acting(robot, server.address)
        robot.until(lambda: fresh(robot) >= 1)
        assert warns == any('does not state what its actions mean' in line for line in said)


def test_a_robot_names_its_session_and_goes_on_with_it_on_each_connection(robot):
    replies = iter([LEAVE])
    with PlainServer(lambda request: next(replies, repeating(request)), ours()) as server:
        node = acting(robot, server.address)
        robot.until(lambda: fresh(robot) >= 1)
        assert server.connections >= 2
        assert node.trigger_deactivate().name == 'SUCCESS'
        assert node.trigger_activate().name == 'SUCCESS'
        count, before = len(server.asked), server.connections
        robot.until(lambda: len(server.asked) > count and server.connections > before)
        assert {request['session_id'] for request in server.asked} == {
            session_id(node.get_fully_qualified_name())
        }


def test_no_two_nodes_have_the_same_session(monkeypatch):
    nodes = ['/action', '/a/action', '/a/language', '/b/action', '/a_b/action', '/a/b/action']
    nodes += [f'/{"x" * 100}{n}/action' for n in range(2)] + ['/__hidden/action']
    found = [session_id(node) for node in nodes]
    assert len(set(found)) == len(nodes) and all(ID.fullmatch(one) for one in found)
    assert found == [session_id(node) for node in nodes]
    monkeypatch.setattr(server_link, 'os', SimpleNamespace(getpid=lambda: -1))
    assert session_id('/action') != found[0]  # another process has another session


def test_a_refused_request_is_warned_of_and_the_connection_lives(robot):
    said, replies = [], iter([{'refused': 'observation.state has NaN'}] * 2)

    def answer(request):
        return next(replies, repeating(request)) | {'request_id': request['request_id']}

    with PlainServer(answer, ours(refusals=True)) as server:
        node = acting(robot, server.address)
        node.warn_throttled = lambda key, line: said.append(line)
        robot.until(lambda: fresh(robot) >= 1)
        assert any('refused a request: observation.state has NaN' in line for line in said)
        assert server.connections == 1 and server.asked[0]['refusals'] is True


@pytest.mark.parametrize(
    'metadata, why',
    [
        ({}, 'it knows none'),
        (ours(leftover=False), 'its engine.rtc is off'),
        (ours(chunk_size=10), 'its chunk_size is 10, here 50'),
    ],
    ids=['plain', 'off', 'other chunks'],
)
def test_a_server_that_cannot_go_on_from_what_runs_is_refused_by_name(robot, metadata, why):
    with PlainServer(repeating, metadata) as server:
        node = acting(robot, server.address, server__rtc=True, **CHUNKS)
        robot.until(lambda: why in node._server.policy.problem)
        assert 'server.rtc' in node._server.policy.problem and not server.asked


def test_a_deadline_that_a_server_misses_is_counted(robot):
    late = {'missed': 'no chunk could be made by the deadline'}
    with PlainServer(lambda request: late) as server:
        node = acting(robot, server.address)
        robot.until(lambda: node._too_late >= 2)
        assert not fresh(robot) and server.connections == 1
        assert node.warning_counts['missed'] >= 2


def test_a_server_that_misses_what_it_was_told_is_warned_of_with_what_to_change(robot):
    said = []

    def late(request):
        return {'missed': 'too late', 'request_id': request['request_id']}

    with PlainServer(late, ours()) as server:
        node = acting(robot, server.address, control_frequency=1.0)
        node.warn_throttled = lambda key, line: said.append(line)
        robot.until(lambda: any('server.send_deadlines: false' in line for line in said))
        assert any(
            'makes no chunk in' in line and 'lower control_frequency' in line for line in said
        )


@pytest.mark.parametrize('address', ['', 'localhost:8000'])
def test_an_address_that_is_none_fails_configure(robot, address):
    node = robot.bring(RemoteAction, server__address=address)
    assert node.trigger_configure().name == 'FAILURE'


def test_it_can_be_switched_off_and_on(robot):
    with PlainServer(near) as server:
        node = acting(robot, server.address)
        robot.until(lambda: fresh(robot) >= 1)
        assert node.trigger_deactivate().name == 'SUCCESS'
        assert node.trigger_activate().name == 'SUCCESS'
        count = fresh(robot)
        robot.until(lambda: fresh(robot) > count)
        assert node.trigger_deactivate().name == 'SUCCESS'
        assert node.trigger_cleanup().name == 'SUCCESS'
