"""Deadlines, steps, questions, capsules and leftovers apply to their own session only."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from server_cases import (
    PATIENCE,
    OldClient,
    busy,
    key_file,
    libero,
    packed,
    running_server,
    tabletop,
    unpacked,
    until,
)

from embodied_kv.errors import ErrorCode
from embodied_kv.serving import batch
from embodied_kv.serving.stream_quota import QuotaError
from embodied_kv.serving.websocket.session import Session


def refusal(client, request):
    with pytest.raises(RuntimeError) as told:
        client.infer(request)
    return str(told.value)


def test_a_deadline_that_has_passed_is_missed_and_the_connection_lives():
    with running_server(engine={'time_budget': True}) as opened, opened.client() as client:
        reply = client.infer(libero() | {'deadline_ms': 1e-6})
        assert 'deadline' in reply['missed'] and 'actions' not in reply
        assert client.infer(libero())['policy_timing']['steps'] == 4
        reply = client.infer(libero() | {'deadline_ms': 3.6e6})
        assert reply['policy_timing']['steps'] == 4


def test_late_request_costs_others_no_step():
    with running_server(engine={'time_budget': True}) as opened:
        clients = [opened.client() for _ in range(3)]
        wishes = [{'deadline_ms': 1e-6}, {}, {'euler_steps': 3}]
        replies = [{} for _ in clients]

        def ask(n):
            replies[n] = clients[n].infer(libero(n) | wishes[n])

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert 'missed' in replies[0]
        assert [reply['policy_timing']['steps'] for reply in replies[1:]] == [4, 3]
        for client in clients:
            client.socket.close()


def test_a_chunk_does_not_wait_for_the_rest_of_its_batch(monkeypatch):
    serve, batches, answered = batch.serve, [], threading.Event()

    def served(engine, frames, deadline, kept):
        batches.append(len(frames))
        if len(batches) == 3:  # the first client, then both parts of a batch
            assert answered.wait(PATIENCE)
        return serve(engine, frames, deadline, kept)

    monkeypatch.setattr(batch, 'serve', served)
    with running_server() as opened, ThreadPoolExecutor(3) as threads:
        clients = [opened.client() for _ in range(3)]

        def ask(client, steps):
            reply = client.infer(libero() | {'euler_steps': steps})
            if client is not clients[0]:
                answered.set()
            return reply['policy_timing']['steps']

        with busy(opened):
            asked = [threads.submit(ask, clients[0], 4)]
            until(lambda: opened.sessions.values()['batches'] == 1)
            asked += [threads.submit(ask, clients[n], 1 + n) for n in (1, 2)]
            until(lambda: opened.sessions.values()['waiting'] == 2)
        assert [one.result(PATIENCE) for one in asked] == [4, 2, 3]
        assert batches == [1, 1, 1]
        for client in clients:
            assert client.infer(libero())['policy_timing']['steps'] == 4
            client.socket.close()


def test_a_refused_inference_is_answered_where_the_request_asks_for_it():
    with running_server(engine={'rtc': 'trained'}) as opened, opened.client() as client:
        asked = {'refusals': True, 'request_id': 'q', 'session_id': 'arm'}
        first = client.infer(libero() | asked)['actions']
        for wrong, why in (
            ({'observation/state': np.full(8, np.nan)}, 'NaN or infinity'),
            ({'observation/image': 5}, 'must be [height, width, 3]'),
            ({'leftover': np.zeros((4, 3))}, 'leftover must be [n, 7]'),
        ):
            reply = client.infer(libero() | asked | wrong)
            assert why in reply['refused'] and reply['request_id'] == 'q'
            assert 'actions' not in reply
        assert 'euler_steps' in client.infer(libero() | asked | {'euler_steps': 'x'})['refused']
        assert client.infer({'endpoint': 'reset'} | asked)['status'] == 'reset'
        np.testing.assert_array_equal(client.infer(libero() | asked)['actions'], first)
        assert 'NaN' in refusal(client, libero() | {'observation/state': np.full(8, np.nan)})


def test_number_of_euler_steps_is_as_requested():
    with running_server() as opened, opened.client() as client:
        assert client.infer(libero() | {'euler_steps': 2})['policy_timing']['steps'] == 2
        assert client.infer(libero())['policy_timing']['steps'] == 4
        assert 'must be from 2 to 4' in refusal(client, libero() | {'euler_steps': 40})


def test_restored_session_repeats_bit_for_bit():
    with running_server() as opened, opened.client() as client:
        asked = {'session_id': 'arm'}
        client.infer(libero(0) | asked)
        said = client.infer({'endpoint': 'snapshot', 'name': 'before'} | asked)
        assert (said['name'], said['capsules'], said['next']) == ('before', ['before'], 1)
        first = [client.infer(libero(n) | asked)['actions'] for n in (1, 2)]
        assert not np.array_equal(first[0], client.infer(libero(1) | asked)['actions'])
        assert client.infer({'endpoint': 'restore', 'name': 'before'} | asked)['next'] == 1
        for n, actions in enumerate(first, 1):
            np.testing.assert_array_equal(actions, client.infer(libero(n) | asked)['actions'])


def test_capsule_outlives_its_connection():
    with running_server() as opened:
        with opened.client() as client:
            client.infer(libero() | {'session_id': 'arm'})
            client.infer({'endpoint': 'snapshot', 'name': 'a', 'session_id': 'arm'})
            expected = client.infer(libero(1) | {'session_id': 'arm'})['actions']
        with opened.client() as other:
            told = other.infer({'endpoint': 'restore', 'name': 'a', 'session_id': 'leg'})
            assert 'must have a capsule' in told['error']
            told = other.infer({'endpoint': 'restore', 'name': 'a', 'session_id': 'arm'})
            assert told['name'] == 'a'
            found = other.infer(libero(1) | {'session_id': 'arm'})['actions']
            np.testing.assert_array_equal(found, expected)


def test_reset_restarts_the_session():
    with running_server() as opened, opened.client() as client:
        asked = {'session_id': 'arm'}
        first = client.infer(libero() | asked)['actions']
        assert client.infer({'endpoint': 'reset'} | asked)['status'] == 'reset'
        np.testing.assert_array_equal(client.infer(libero() | asked)['actions'], first)


def test_a_session_is_held_by_one_connection():
    with running_server() as opened, opened.client() as client:
        client.infer(libero() | {'session_id': 'arm'})
        with OldClient(opened.port) as other:
            assert 'in use by another' in refusal(other, libero() | {'session_id': 'arm'})
        client.infer(libero() | {'session_id': 'leg'})  # it now holds another session
        with OldClient(opened.port) as other:
            other.infer(libero() | {'session_id': 'arm'})


def test_answer_is_about_the_newest_frame():
    with running_server('tabletop') as opened, opened.client() as client:
        question = {'endpoint': 'ask', 'question': 'Subtask:', 'max_tokens': 4}
        assert 'must be about a frame' in client.infer(question)['error']
        client.infer(tabletop())
        said = client.infer(question)
        assert said['tokens'] <= 4 and said['reason'] in ('length', 'eos')
        assert said == client.infer(question)
        assert 'empty' in client.infer(question | {'question': ' '})['error']


def test_policy_without_questions_refuses_them():
    with running_server() as opened, opened.client() as client:
        client.infer(libero())
        said = client.infer({'endpoint': 'ask', 'question': 'why?'})
        assert 'answers no questions' in said['error']


def test_a_chunk_goes_on_from_the_leftover():
    with running_server(engine={'rtc': 'trained'}) as opened, opened.client() as client:
        running = client.infer(libero())['actions']
        left = running[4:]
        asked = libero(1) | {'leftover': left, 'leftover_delay': 3}
        np.testing.assert_allclose(client.infer(asked)['actions'][:3], left[:3], atol=1e-4)
        wrong = libero() | {'leftover': np.zeros((4, 3))}
        assert 'leftover must be [n, 7]' in refusal(client, wrong)


def test_leftover_without_real_time_chunking_is_refused():
    with running_server() as opened, opened.client() as client:
        wrong = libero() | {'leftover': np.zeros((4, 7))}
        assert 'real-time chunking is off' in refusal(client, wrong)


@pytest.mark.parametrize(
    'wish, said',
    [
        (
            {'leftover': np.zeros((4, 7)), 'leftover_delay': 5},
            'leftover_delay must be at most 4 for these 4 actions',
        ),
        (
            {'leftover': np.zeros((60, 7)), 'leftover_delay': 50},
            'must be at most 9',
        ),
        ({'leftover_delay': 3}, 'leftover_delay must come with leftover'),
        ({'deadline_ms': 100}, 'start it with engine.time_budget: true'),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_unsupported_extension_is_refused(wish, said):
    with running_server(engine={'rtc': 'trained'}) as opened, opened.client() as client:
        assert said in refusal(client, libero() | wish)


@pytest.mark.parametrize(
    'wish',
    [
        {'deadline_ms': -1},
        {'deadline_ms': float('nan')},
        {'deadline_ms': [1, 2]},
        {'euler_steps': 2.5},
        {'euler_steps': 'all'},
        {'session_id': '#1'},
        {'session_id': 'a/b'},
        {'endpoint': ['ask']},
        {'leftover': [[float('inf')]]},
        {'leftover_delay': -1},
        {'max_tokens': 0, 'endpoint': 'ask'},
        {'question': 5, 'endpoint': 'ask'},
        {'name': 5, 'endpoint': 'restore'},
        {'about': 'a/b', 'endpoint': 'ask'},
        {'evict': 'no', 'endpoint': 'ask'},
        {'capsule': 'x', 'endpoint': 'import'},
    ],
    ids=str,
)
def test_invalid_extension_is_refused_by_its_key(wish):
    from embodied_kv.serving.websocket import calls
    from embodied_kv.serving.websocket.observation_parser import RefusedError

    with pytest.raises(RefusedError, match=next(iter(wish))):
        calls.read(wish)


@pytest.mark.parametrize(
    'wish',
    [{'endpoint': 'ask', 'question': 5}, {'endpoint': 'reset', 'session_id': '#1'}],
    ids=lambda wish: wish['endpoint'],
)
def test_malformed_request_is_answered_with_its_id(wish):
    with running_server() as opened, opened.client() as client:
        reply = client.infer({'request_id': 'q'} | wish)
        assert [*wish][1] in reply['error'] and reply['request_id'] == 'q'
        assert client.infer(libero())['actions'].shape == (10, 7)


def test_keys_of_other_endpoints_are_ignored():
    everyday = {'name': 7, 'question': [], 'max_tokens': 'x', 'steps': 'all', 'delay': -1}
    with running_server() as opened, opened.client() as client:
        assert client.infer(libero() | everyday)['policy_timing']['steps'] == 4
        assert client.infer({'endpoint': 'reset', 'deadline_ms': 'soon'})['status'] == 'reset'


PROMPT = {'endpoint': 'ask', 'question': 'Subtask:', 'max_tokens': 4}


def test_a_question_about_another_session_needs_no_session_of_its_own():
    with running_server('tabletop') as opened, opened.client() as arm, opened.client() as mouth:
        arm.infer(tabletop() | {'session_id': 'arm'})
        asked = PROMPT | {'session_id': 'mouth'}
        assert mouth.infer(asked | {'about': 'arm'}) == arm.infer(PROMPT)
        assert opened.sessions.values()['sessions'] == 1
        assert 'must be about a frame' in mouth.infer(asked | {'about': 'leg'})['error']


def test_question_about_a_session_of_another_key_is_refused(tmp_path):
    file, left, right = key_file(tmp_path, 'left', 'right')
    with running_server('tabletop', api_keys_file=file, message_buffer_mib=64) as opened:
        with opened.client(key=left) as arm, opened.client(key=right) as other:
            arm.infer(tabletop() | {'session_id': 'arm'})
            assert 'must be about a frame' in other.infer(PROMPT | {'about': 'arm'})['error']
            assert arm.infer(PROMPT | {'about': 'arm'})['tokens'] <= 4


def said_two(opened):
    """Pause each text at its second token; return a function that checks for such a text."""
    live = opened.engine.kv.streams.live
    opened.engine.decode_fits = lambda now: any(len(s.tokens) < 2 for s in live())
    return lambda: any(len(stream.tokens) == 2 for stream in live())


def test_a_text_ends_with_the_client_that_asked_for_it():
    with running_server('tabletop') as opened, opened.client() as arm:
        arm.infer(tabletop() | {'session_id': 'arm'})
        two = said_two(opened)
        with opened.client() as mouth:
            mouth.socket.send(packed(PROMPT | {'about': 'arm'}))
            until(two)
        until(lambda: not opened.engine.kv.streams.live())


def test_question_evicts_an_older_one_only_if_allowed():
    with running_server('tabletop', engine={'streams': 1}) as opened:
        with opened.client() as arm, opened.client() as mouth:
            arm.infer(tabletop() | {'session_id': 'arm'})
            two = said_two(opened)
            mouth.socket.send(packed(PROMPT | {'about': 'arm'}))
            until(two)
            assert 'at most 1 (got 1 and 1 more)' in arm.infer(PROMPT | {'evict': False})['error']
            arm.socket.send(packed(PROMPT))
            assert unpacked(mouth.socket.recv(PATIENCE))['reason'] == 'evicted'
            del opened.engine.decode_fits
            opened.device.wake()
            assert unpacked(arm.socket.recv(PATIENCE))['reason'] in ('eos', 'length')


def test_look_needs_neither_prompt_nor_chunk():
    with running_server('tabletop') as opened, opened.client() as client, opened.client() as other:
        seen = {**tabletop(), 'prompt': ''}
        assert client.infer({'endpoint': 'look'} | seen) == {'status': 'look'}
        text = client.infer(PROMPT)
        other.infer({'endpoint': 'look'} | seen)
        assert other.infer(PROMPT) == text
        assert opened.sessions.values()['batches'] == 0  # no chunk was made
        assert client.infer(tabletop())['actions'].shape[1] == 7


@pytest.mark.parametrize(
    'wrong', [{'front': 5}, {'observation.state': [np.nan] * 7}], ids=lambda wrong: [*wrong][0]
)
def test_invalid_look_keeps_the_connection(wrong):
    with running_server('tabletop') as opened, opened.client() as client:
        looks = {'endpoint': 'look'} | tabletop()
        assert next(iter(wrong)) in client.infer(looks | wrong)['error']
        assert client.infer(looks) == {'status': 'look'}


def test_looks_do_not_change_the_noise_of_the_next_chunk():
    with running_server('tabletop') as opened, opened.client() as one, opened.client() as other:
        one.infer({'endpoint': 'look', 'session_id': 'arm'} | tabletop())
        first = one.infer({'session_id': 'arm'} | tabletop())['actions']
        one.infer({'endpoint': 'reset', 'session_id': 'arm'})
        one.socket.close()
        again = other.infer({'session_id': 'arm'} | tabletop())['actions']
        np.testing.assert_array_equal(first, again)


def test_restore_beyond_the_stream_quota_keeps_the_connection_open(monkeypatch):
    def full(*_):
        raise QuotaError('streams of arm must be at most 1 (got 2); raise engine.streams')

    with running_server() as opened, opened.client() as client:
        session = {'session_id': 'arm'}
        client.infer(libero() | session)
        client.infer({'endpoint': 'snapshot', 'name': 'a'} | session)
        monkeypatch.setattr(Session, 'restore', full)
        reply = client.infer({'endpoint': 'restore', 'name': 'a'} | session)
        assert 'at most 1' in reply['error'] and reply['error_code'] == ErrorCode.NO_ROOM
        assert 'actions' in client.infer(libero(1) | session)


def test_longest_names_of_key_and_session_can_act(tmp_path):
    file, key = key_file(tmp_path, 'n' * 64)
    with running_server(api_keys_file=file) as opened, opened.client(key=key) as client:
        assert 'actions' in client.infer(libero() | {'session_id': 's' * 64})
