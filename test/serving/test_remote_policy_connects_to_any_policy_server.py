"""The client matches each reply to its request, or closes the connection and reconnects."""

import asyncio
import threading
import types

import numpy as np
import pytest
from plain_server import LEAVE, STALL, PlainServer, actions
from server_cases import PATIENCE, key_file, libero, packed, running_server, until

from embodied_kv.serving.remote_policy import connection
from embodied_kv.serving.remote_policy.connection import (
    Address,
    RemotePolicy,
    UnansweredError,
    _Job,
)
from embodied_kv.serving.websocket.extensions import Extensions

BRIEF = 2.0  # s; limit of replies that are meant to be late


class Asker:
    """A connection and its log lines."""

    def __init__(
        self,
        address,
        fits=lambda extensions: None,
        seconds=PATIENCE,
        key='',
        say=None,
        session='',
    ):
        self.said = []
        where = Address(address, key, seconds)
        self.policy = RemotePolicy(where, fits, say or self.said.append, session)
        self.policy.start()

    def ask(self, request):
        until(lambda: self.policy.is_connected)
        return self.policy.ask(request).result(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.policy.stop()


def once(first, then):
    """Return an answer function of a server: `first` once, then `then`."""
    answers = iter([first])
    return lambda request: next(answers, then)


def test_a_plain_server_answers_one_request_after_another():
    with PlainServer(lambda request: actions(7, value=request['n'])) as server:
        with Asker(server.address) as asker:
            for n in range(20):
                assert asker.ask({'n': n})['actions'][0, 0] == n
            assert asker.policy.extensions is None
        assert all(set(request) == {'n'} for request in server.asked)


def test_server_states_extensions_and_echoes_request_ids():
    with running_server(engine={'rtc': 'guided'}) as opened:
        with Asker(f'ws://127.0.0.1:{opened.port}') as asker:
            replies = [asker.ask(libero(n)) for n in range(3)]
            names = [reply['request_id'] for reply in replies]
            assert len(set(names)) == 3
            found = asker.policy.extensions
            assert (found.chunk_size, found.action_dim, found.dt) == (10, 7, 0.05)
            assert (found.leftover, found.deadlines, found.questions) == (True, False, False)
            assert found.min_euler_steps == 2 and found.version


@pytest.mark.parametrize(
    'first, why',
    [
        (LEAVE, 'received|close'),
        (STALL, 'no reply within'),
        ('Traceback\nValueError: state is missing\n', 'state is missing'),
        (b'\xc1', 'must be msgpack'),
        ([actions(7), actions(7)], ''),
    ],
    ids=['leaves', 'stalls', 'refuses', 'garbage', 'says more than was asked'],
)
def test_client_reconnects_after_any_failure(first, why):
    with PlainServer(once(first, actions(7, value=2.0))) as server:
        with Asker(server.address, seconds=BRIEF if first is STALL else PATIENCE) as asker:
            if isinstance(first, list):
                asker.ask({})
                until(lambda: server.connections == 2)
            else:
                with pytest.raises(UnansweredError, match=why):
                    asker.ask({})
            reply = answered(asker)
            assert reply['actions'][0, 0] == 2.0 and server.connections >= 2


def answered(asker, request=types.MappingProxyType({})):
    """Repeat a request until it is answered; return the reply."""
    while True:
        try:
            return asker.ask(request)
        except UnansweredError:
            pass


def test_lost_connection_continues_its_session():
    with running_server() as opened, opened.client() as client:
        expected = [client.infer(libero() | {'session_id': 'arm'})['actions'] for _ in range(3)]
    with running_server() as opened:
        with Asker(f'ws://127.0.0.1:{opened.port}', session='arm') as asker:
            for actions_of_round in expected:
                np.testing.assert_array_equal(
                    answered(asker, libero())['actions'], actions_of_round
                )
                opened.server._loop.call_soon_threadsafe(opened.server._admission.abort)
                until(lambda: not asker.policy.is_connected)
            assert answered(asker, libero()) and opened.sessions.values()['sessions'] == 1


def test_every_request_names_the_session_and_asks_for_refusals_where_the_server_knows_them():
    def answer(request):
        return actions(7) | {'request_id': request['request_id']}

    ours = Extensions(6, 7, 0.05, True, True, False, 2, refusals=True)
    for session, known in (
        ('arm', {'session_id', 'refusals', 'request_id'}),
        ('', {'refusals', 'request_id'}),
    ):
        with PlainServer(answer, ours.metadata) as server:
            with Asker(server.address, session=session) as asker:
                for _ in range(2):
                    asker.ask({})
            assert all(request.keys() == known for request in server.asked)
    with PlainServer(lambda request: actions(7)) as server:
        with Asker(server.address, session='arm') as asker:
            asker.ask({})
        assert server.asked == [{}]  # openpi's own servers receive plain requests


def test_a_new_connection_waits_for_its_session_to_be_handed_over(monkeypatch):
    monkeypatch.setattr(connection, 'TAKE_OVER_SECONDS', PATIENCE)
    waits = threading.Event()

    def answer(request):
        waits.wait(0.5)
        return actions(7) | {'request_id': request['request_id']}

    ours = Extensions(6, 7, 0.05, True, True, False, 2)
    with PlainServer(answer, ours.metadata) as server:
        with Asker(server.address, session='arm') as asker:
            until(lambda: asker.policy.is_connected)
            assert asker.policy.ask({}, 0.01).result(PATIENCE)
            with pytest.raises(UnansweredError, match='no reply within 0.01 s'):
                asker.policy.ask({}, 0.01).result(PATIENCE)


def test_a_reply_of_another_request_is_refused():
    ours = Extensions(6, 7, 0.05, True, True, False, 2)
    late = []

    def answer(request):
        late.append(request['request_id'])
        return actions(7) | {'request_id': late[0]}

    with PlainServer(answer, ours.metadata) as server, Asker(server.address) as asker:
        asker.ask({})
        with pytest.raises(UnansweredError, match='of another request'):
            asker.ask({})
        until(lambda: server.connections == 2)
        with pytest.raises(UnansweredError, match='of another request'):  # after reconnecting, too
            asker.ask({})


def test_request_without_connection_fails_at_once():
    with PlainServer(lambda request: actions(7)) as server:
        port = server.port
        asker = Asker(server.address)
        assert answered(asker)['actions'].shape == (6, 7)
    with asker:
        until(lambda: not asker.policy.is_connected)
        with pytest.raises(UnansweredError):
            asker.policy.ask({}).result(PATIENCE)
        until(lambda: 'Connect' in asker.policy.problem)
        with PlainServer(lambda request: actions(7), port=port):
            assert answered(asker)['actions'].shape == (6, 7)
    assert sum('is connected' in line for line in asker.said) == 2


def test_unsuitable_server_gets_no_request():
    def fits(extensions):
        raise ValueError('it is of another robot')

    with PlainServer(lambda request: actions(7)) as server, Asker(server.address, fits) as asker:
        until(lambda: 'it is of another robot' in asker.policy.problem)
        assert not asker.policy.is_connected and not server.asked


def test_invalid_metadata_is_refused_by_its_key():
    wrong = Extensions(6, 7, 0.05, True, True, False, 2).metadata
    wrong['embodied_kv']['dt'] = float('nan')
    with PlainServer(lambda request: actions(7), wrong) as server:
        with Asker(server.address) as asker:
            until(lambda: 'embodied_kv.dt' in asker.policy.problem)


def test_key_admits_the_client(tmp_path):
    keys, own = key_file(tmp_path, 'arm')
    secret = tmp_path / 'own'
    secret.write_text(own)
    with running_server(api_keys_file=keys) as opened:
        address = f'ws://127.0.0.1:{opened.port}'
        with Asker(address) as stranger:
            until(lambda: '401' in stranger.policy.problem)
        with Asker(address, key=Address.key_of(str(secret))) as asker:
            assert asker.ask(libero())['actions'].shape == (10, 7)


@pytest.mark.parametrize('words', ['', 'arm-1 3f1c0a5be2d94877'])
def test_a_key_file_of_another_form_is_refused(tmp_path, words):
    (tmp_path / 'key').write_text(words)
    with pytest.raises(ValueError, match='must contain the key and nothing else'):
        Address.key_of(str(tmp_path / 'key'))


@pytest.mark.parametrize(
    'address', ['', 'localhost:8000', 'http://localhost', 'ws://', 'ws://h:99999']
)
def test_invalid_address_is_refused(address):
    with pytest.raises(ValueError, match='must be ws://HOST:PORT'):
        Address(address)


def test_requests_at_the_end_are_refused():
    with PlainServer(lambda request: STALL) as server:
        asker = Asker(server.address)
        until(lambda: asker.policy.is_connected)
        promises = [asker.policy.ask({'n': n}) for n in range(3)]
        until(lambda: server.asked)
        asker.policy.stop()
        for promise in promises:
            with pytest.raises(UnansweredError):
                promise.result(PATIENCE)
        asker.policy.join(PATIENCE)
        assert not asker.policy.is_alive()


def test_stop_works_if_a_cancellation_is_lost():
    def fits(extensions):
        asker.policy._ended = True  # as `stop` does, but without a cancellation

    with PlainServer(lambda request: actions(7)) as server:
        asker = Asker(server.address, fits)
        asker.policy.join(PATIENCE)
        assert not asker.policy.is_alive() and not asker.policy.is_connected


def test_connection_that_does_not_close_is_reported(monkeypatch):
    monkeypatch.setattr(RemotePolicy, 'join', lambda self, seconds: None)
    monkeypatch.setattr(RemotePolicy, 'is_alive', lambda self: True)
    said = []
    RemotePolicy(Address('ws://127.0.0.1:1'), lambda extensions: None, said.append).stop()
    assert 'did not close in time' in said[0]


def test_failing_log_callback_leaves_no_dead_connection():
    def say(line):
        said.append(line)
        if len(said) == 1:
            raise RuntimeError('its log is full')

    said = []
    with PlainServer(lambda request: actions(7)) as server:
        with Asker(server.address, say=say) as asker:
            until(lambda: server.connections == 2)
            assert asker.ask({})['actions'].shape == (6, 7) and 'is connected' in said[0]


def test_message_before_a_request_is_no_reply():
    class Socket:
        async def send(self, message):
            heard.set_result(packed(actions(7)))
            await asyncio.Event().wait()

    async def exchange():
        nonlocal heard
        heard = asyncio.get_running_loop().create_future()
        await policy._exchange(Socket(), heard, _Job({}, PATIENCE), 'one')

    heard = None
    policy = RemotePolicy(Address('ws://127.0.0.1:1'), lambda extensions: None, print)
    with pytest.raises(UnansweredError, match='was not requested'):
        asyncio.run(exchange())


def test_request_may_have_its_own_time_limit():
    with PlainServer(lambda request: STALL) as server, Asker(server.address) as asker:
        until(lambda: asker.policy.is_connected)
        with pytest.raises(UnansweredError, match=f'no reply within {BRIEF:g} s'):
            asker.policy.ask({}, BRIEF).result(PATIENCE)


def test_arrays_of_any_kind_cross():
    sent = {'a': np.arange(6, dtype=np.float64).reshape(2, 3), 'b': {'c': np.uint8([1])}}
    with PlainServer(lambda request: actions(7)) as server, Asker(server.address) as asker:
        asker.ask(sent)
        np.testing.assert_array_equal(server.asked[0]['a'], sent['a'])
        np.testing.assert_array_equal(server.asked[0]['b']['c'], sent['b']['c'])
