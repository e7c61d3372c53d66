"""A request names an execution horizon and reports an execution; the scheduler counts both."""

import numpy as np
import pytest
from server_cases import busy, libero, packed, running_server, until

from embodied_kv.fleet.schedulers import FairDeadline, Fifo, Kairos, LeastAttained, ShortestJob
from embodied_kv.serving.scheduling import SchedulingConfig

CHUNK = 10  # actions of LIBERO
DONE = {'round': 0, 'start': 5.0, 'end': 5.4, 'remaining': 1}


def wait_of(opened):
    """Return the wait time of the current task of the only robot."""
    (robot,) = opened.sessions._server.dispatcher.rounds.robots.values()
    return robot.task.wait


def refused(client, **wishes):
    return client.infer(libero() | {'refusals': True} | wishes)['refused']


def test_a_reply_states_how_much_of_its_chunk_is_executed():
    with running_server() as opened, opened.client() as client:
        for round, (policy, least, most) in enumerate(
            [('whole', CHUNK, CHUNK), ('static:3', 3, 3), ('confidence:0.2:2', 2, CHUNK)]
        ):
            reply = client.infer(libero() | {'execution_horizon': policy})
            assert reply['round'] == round
            assert least <= reply['execution_horizon'] <= most
            assert reply['confidence'].shape == (len(reply['actions']),)
            assert ((reply['confidence'] >= 0) & (reply['confidence'] <= 1)).all()


def test_a_client_that_names_no_horizon_gets_openpis_reply():
    with running_server() as opened, opened.client() as client:
        assert client.infer(libero()).keys() == {'actions', 'policy_timing', 'server_timing'}


def test_an_execution_that_is_reported_counts_for_the_wait_of_its_task():
    with running_server() as opened, opened.client() as client:
        client.infer(libero() | {'execution_horizon': 'static:4'})
        client.infer(libero() | {'execution_horizon': 'static:4', 'execution': DONE})
        assert wait_of(opened).execution == pytest.approx(0.4)


def test_another_instruction_begins_another_task_and_old_executions_are_ignored():
    with running_server() as opened, opened.client() as client:
        client.infer(libero() | {'execution_horizon': 'static:4'})
        for _ in range(2):
            client.infer(libero() | {'prompt': 'stop', 'execution': DONE})
            assert wait_of(opened).execution is None
        client.infer(libero() | {'prompt': 'stop', 'execution': DONE | {'round': 2}})
        assert wait_of(opened).execution == pytest.approx(0.4)


def test_an_execution_of_a_round_that_was_not_requested_is_ignored():
    with running_server() as opened, opened.client() as client:
        client.infer(libero() | {'execution': DONE})
        client.infer(libero() | {'execution': DONE | {'round': 7}})
        assert wait_of(opened).execution is None


@pytest.mark.parametrize(
    ('wishes', 'why'),
    [
        ({'execution_horizon': 'sometimes'}, 'execution_horizon'),
        ({'execution_horizon': 4}, 'execution_horizon must be text'),
        ({'execution_horizon': 'static:0'}, 'execution_horizon'),
        ({'execution': 4}, 'execution must be a map of end, remaining, round, start'),
        ({'execution': {'round': 0}}, 'execution must be a map'),
        ({'execution': DONE | {'end': 4.0}}, 'must not be before execution.start'),
        ({'execution': DONE | {'start': np.nan}}, 'finite'),
        ({'execution': DONE | {'round': -1}}, 'execution.round'),
        ({'execution': DONE | {'round': 0.5}}, 'execution.round'),
        ({'execution': DONE | {'remaining': 10**6}}, 'execution.remaining'),
    ],
)
def test_a_malformed_report_is_refused_by_name_and_the_session_goes_on(wishes, why):
    with running_server() as opened, opened.client() as client:
        assert why in refused(client, **wishes)
        assert client.infer(libero() | {'execution_horizon': 'whole'})['round'] == 0


@pytest.mark.parametrize(
    ('name', 'kind'),
    [
        ('deadline', FairDeadline),
        ('kairos', Kairos),
        ('fifo', Fifo),
        ('autellix', LeastAttained),
        ('shortest', ShortestJob),
    ],
)
def test_the_parameter_selects_the_scheduler(name, kind):
    order = SchedulingConfig(scheduler=name, kairos_buckets=3, kairos_aging=7).order(str)
    assert isinstance(order, kind)
    if name == 'kairos':
        assert (order.buckets, order.aging) == (3, 7)


@pytest.mark.parametrize(
    ('wrong', 'why'),
    [
        ({'scheduler': 'best'}, r"scheduler must be one of kairos, .*, shortest \(got 'best'\)"),
        ({'kairos_bucket_order': 'any'}, 'kairos_bucket_order must be one of'),
    ],
)
def test_another_scheduler_is_refused_by_name(wrong, why):
    with pytest.raises(ValueError, match=why):
        SchedulingConfig(**wrong)


@pytest.mark.parametrize(
    ('name', 'first'), [('fifo', 'modest'), ('kairos', 'waited'), ('deadline', 'hasty')]
)
def test_sessions_are_served_in_the_order_of_their_scheduler(name, first):
    """Of three waiting requests, one came first, one has waited longest, one has a deadline."""
    scheduling = SchedulingConfig(scheduler=name)
    with running_server(
        engine={'max_batch_robots': 1, 'time_budget': True}, scheduling=scheduling
    ) as opened:
        made, serve = [], opened.sessions._serve
        opened.sessions._server._serve = {
            'here': lambda frames, due: made.extend(f.robot for f in frames) or serve(frames, due)
        }
        clients = {one: opened.client() for one in ('busy', 'modest', 'waited', 'hasty')}
        wishes = {'hasty': {'deadline_ms': 60.0}}
        for one in ('hasty', 'waited', 'modest'):  # usage rises in this order
            clients[one].infer(libero() | {'session_id': one, 'execution_horizon': 'static:4'})
        for task in ledger(opened, 'waited'):
            task.started, task.wait.total = task.started - 100.0, 90.0
        del made[:]
        with busy(opened):
            clients['busy'].socket.send(packed(libero() | {'session_id': 'busy'}))
            until(lambda: made == ['busy'])
            for n, one in enumerate(('modest', 'waited', 'hasty'), 1):
                request = libero() | {'session_id': one, 'execution_horizon': 'static:4'}
                clients[one].socket.send(packed(request | wishes.get(one, {})))
                until(lambda n=n: opened.sessions.values()['waiting'] == n)
        until(lambda: len(made) >= 2)
        assert made[1] == first
        for client in clients.values():
            client.socket.close()


def ledger(opened, name):
    """Return the task of a session in a list."""
    return [opened.sessions._server.dispatcher.rounds.robots[name].task]


def test_execution_horizon_is_at_most_the_sent_actions():
    with running_server(horizon=3) as opened, opened.client() as client:
        reply = client.infer(libero() | {'execution_horizon': 'whole'})
        assert len(reply['actions']) == reply['execution_horizon'] == 3
        assert reply['confidence'].shape == (3,)
