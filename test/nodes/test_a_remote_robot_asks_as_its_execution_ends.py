"""With `server.request_ahead`, a robot requests the next chunk before its execution ends."""

import numpy as np
import pytest
from rclpy.parameter import Parameter
from remote_suite import AXES, PlainServer, acting, actions, fresh, running_server, sources

from embodied_kv.control.command import FRESH, SOURCES, STOP
from embodied_kv.nodes.action import Action
from embodied_kv.serving.websocket.extensions import Extensions

OURS = {'preset': 'tiny', 'server__request_ahead': 1}  # chunks of 6 actions
AHEAD = {'preset': 'pi05', 'server__request_ahead': 1}  # chunks of 50 actions


def address(opened):
    return f'ws://127.0.0.1:{opened.port}'


def near(request):
    return actions(AXES, value=0.1, count=50)


def executed(robot):
    return [c for c in robot.chunks if SOURCES[c.source] == FRESH]


def test_it_executes_as_much_as_the_server_is_sure_of_and_reports_it(robot):
    with running_server('tabletop') as opened:
        node = acting(robot, address(opened), execution_horizon='confidence:0.2:3', **OURS)
        robot.until(lambda: fresh(robot) >= 3)
        assert all(3 <= c.execution_horizon <= c.chunk_size for c in executed(robot))
        assert all(len(c.confidence) == c.chunk_size for c in executed(robot))
        assert robot.trajectories and not node.warning_counts['reply']
        (account,) = opened.sessions._server.dispatcher.rounds.robots.values()
        assert account.task.wait.execution > 0


def test_requests_follow_executions_and_not_the_rate(robot):
    with PlainServer(near) as server:
        acting(
            robot, server.address, execution_horizon='static:20', control_frequency=20.0, **AHEAD
        )
        robot.until(lambda: fresh(robot) >= 2)
        began, count = robot.suite[0]._world.now(), len(server.asked)
        robot.until(lambda: len(server.asked) >= count + 2)
        assert robot.suite[0]._world.now() - began > 1.0  # 2 executions of 1.9 s; by rate 0.1 s
        assert all('execution' not in request for request in server.asked)


@pytest.mark.parametrize('ahead', [{}, AHEAD], ids=['by rate', 'by execution'])
def test_an_arm_that_is_not_to_move_requests_once_a_second(robot, ahead):
    with PlainServer(near) as server:
        node = acting(robot, server.address, control_frequency=20.0, **ahead)
        robot.until(lambda: fresh(robot) >= 1)
        node._safety.disarm()
        began, count = robot.suite[0]._world.now(), len(server.asked)
        robot.until(lambda: len(server.asked) >= count + 4)
        assert robot.suite[0]._world.now() - began > 2.0  # of armed robots at 20 Hz: 0.2 s


def test_fault_that_disarms_is_logged(robot, capfd):
    with PlainServer(near) as server:
        node = acting(robot, server.address, **AHEAD)
        robot.until(lambda: fresh(robot) >= 1)
        node._safety.disarm('the arm stood for 3 s')
    assert 'arm disarmed: the arm stood for 3 s; arm it' in capfd.readouterr().err


def test_start_without_a_control_loop_fails_without_another_error(robot, capfd, monkeypatch):
    def refuse(node, armed):
        raise ValueError('no control loop')

    monkeypatch.setattr(Action, '_start_control', refuse)
    with PlainServer(near) as server, pytest.raises(AssertionError):
        acting(robot, server.address, **AHEAD)
    said = capfd.readouterr().err
    assert 'no control loop' in said and 'AttributeError' not in said


def test_no_more_is_executed_than_a_chunk_of_the_preset_has(robot):
    with PlainServer(near) as server:  # it sends 50 actions
        acting(robot, server.address, execution_horizon='whole', **OURS)
        robot.until(lambda: fresh(robot) >= 2)
        assert {c.execution_horizon for c in executed(robot)} == {6}


def test_the_arm_does_not_stop_within_an_execution(robot):
    early = AHEAD | {'server__request_ahead': 10}  # leaves 1 s for the answer on a slow machine
    with PlainServer(near) as server:
        acting(robot, server.address, execution_horizon='static:20', missed_chunk_limit=1, **early)
        robot.until(lambda: fresh(robot) >= 3)
        first = sources(robot).index(FRESH)
        assert STOP not in sources(robot)[first:]


def test_a_server_that_states_no_confidence_is_refused_where_the_horizon_needs_it(robot):
    with PlainServer(near) as server:
        node = acting(robot, server.address, execution_horizon='confidence:0.2:3')
        robot.until(lambda: 'execution_horizon must be whole' in node._server.policy.problem)
        assert not server.asked
        (result,) = node.set_parameters([Parameter('execution_horizon', value='static:3')])
        assert result.successful
        robot.until(lambda: fresh(robot) >= 1)
        (result,) = node.set_parameters([Parameter('execution_horizon', value='confidence:0:3')])
        assert not result.successful and 'execution_horizon must be whole' in result.reason
        assert str(node._policy()) == 'static:3'


def judging(server, wrong):
    """Return the answers of a server that states its confidence; the first two are wrong."""

    def judged(request):
        sure = {'round': 3, 'execution_horizon': 20, 'confidence': np.full(50, 0.9, np.float32)}
        named = {'request_id': request['request_id']}
        return near(request) | sure | named | (wrong if len(server[0].asked) <= 2 else {})

    return judged


TOLD = Extensions(50, AXES, 0.1, False, False, False, 2, executions=True).metadata


@pytest.mark.parametrize(
    'wrong',
    [
        {'execution_horizon': None},
        {'execution_horizon': 0},
        {'execution_horizon': True},
        {'execution_horizon': 10**6},
        {'confidence': None},
        {'confidence': np.full(3, 0.5, np.float32)},
        {'confidence': np.full(50, 2.0, np.float32)},
        {'confidence': np.full(50, np.nan, np.float32)},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_chunk_without_a_sound_horizon_is_not_executed(robot, wrong):
    server = []
    with PlainServer(judging(server, wrong), TOLD) as opened:
        server.append(opened)
        node = acting(robot, opened.address, execution_horizon='confidence:0.2:3', **AHEAD)
        robot.until(lambda: fresh(robot) >= 1)
        assert node.warning_counts['reply'] == 2 and opened.connections == 1
        assert executed(robot)[0].execution_horizon == 20


def test_no_server_makes_the_robot_execute_more_than_its_own_horizon(robot):
    server = []
    with PlainServer(judging(server, {}), TOLD) as opened:
        server.append(opened)
        acting(robot, opened.address, execution_horizon='static:5', server__request_ahead=0)
        robot.until(lambda: fresh(robot) >= 2)
        assert {c.execution_horizon for c in executed(robot)} == {5}


def test_after_a_refused_chunk_the_next_request_does_not_wait_for_its_execution(robot):
    with PlainServer(near) as server:
        node = acting(robot, server.address, execution_horizon='static:50', **AHEAD)
        refuse = node._control._refusal
        node._control._refusal = lambda observed, now: 'it is refused'
        robot.until(lambda: len(server.asked) >= 3)  # 50 actions last 5 s
        assert not fresh(robot)
        node._control._refusal = refuse
        robot.until(lambda: fresh(robot) >= 1)


def test_a_chunk_has_as_long_as_the_arm_still_executes(robot):
    asked = []

    def late(request):
        asked.append(request)
        return near(request) | {'request_id': request['request_id']}

    told = Extensions(50, AXES, 0.1, False, True, False, 2).metadata
    with PlainServer(late, told) as server:
        options = {
            'server__request_ahead': 8,
            'execution_horizon': 'static:20',
            'control_frequency': 10.0,
        }
        acting(robot, server.address, preset='pi05', **options)
        robot.until(lambda: len(asked) >= 3)
        told = [request['deadline_ms'] for request in asked[1:] if 'deadline_ms' in request]
        assert told and max(told) > 200  # a period is 100 ms, and 8 actions are left
