"""`export` and `import` continue a session at another server bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from server_cases import libero, running_server

from embodied_kv.capsule.capsule import Boundary, Capsule, CapsuleError
from embodied_kv.capsule.registry import Registry
from embodied_kv.config import TINY
from embodied_kv.serving.remote_policy.remote_part import RemoteHost
from embodied_kv.session.engine_part import Branch

ARM = {'session_id': 'arm'}


def exported(client, name='a'):
    client.infer(libero() | ARM)
    client.infer({'endpoint': 'snapshot', 'name': name} | ARM)
    return client.infer({'endpoint': 'export', 'name': name} | ARM)['capsule']


def imported(client, capsule, **more):
    return client.infer({'endpoint': 'import', 'capsule': capsule} | ARM | more)


@pytest.fixture
def clients():
    """Yield clients of two servers."""
    with (
        running_server() as first,
        running_server() as second,
        first.client() as here,
        second.client() as there,
    ):
        yield here, there


def test_session_continues_at_another_server(clients):
    here, there = clients
    capsule = exported(here)
    expected = [here.infer(libero(n) | ARM)['actions'] for n in (1, 2)]
    said = imported(there, capsule)
    assert (said['status'], said['name'], said['capsules']) == ('import', 'a', ['a'])
    assert there.infer({'endpoint': 'restore', 'name': 'a'} | ARM)['next'] == 1
    for n, actions in enumerate(expected, 1):
        np.testing.assert_array_equal(there.infer(libero(n) | ARM)['actions'], actions)


def test_capsule_is_imported_under_another_name():
    with running_server() as opened, opened.client() as client:
        capsule = exported(client)
        assert 'already' in imported(client, capsule)['error']
        assert imported(client, capsule, name='b')['capsules'] == ['a', 'b']
        assert client.infer({'endpoint': 'export'} | ARM)['name'] == 'b'


def test_other_engine_refuses_a_capsule():
    with running_server() as first, running_server(engine={'euler_steps': 5}) as second:
        with first.client() as here, second.client() as there:
            capsule = exported(here)
            assert 'euler_steps' in imported(there, capsule)['error']
            assert there.infer({'endpoint': 'snapshot', 'name': 'c'} | ARM)['capsules'] == ['c']


@pytest.fixture(scope='module')
def session():
    with running_server() as opened, opened.client() as client:
        yield client, exported(client)


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_a_capsule_with_one_wrong_bit_is_refused(session, place, bit):
    client, capsule = session
    wrong = bytearray(capsule)
    wrong[int(place * len(wrong))] ^= 1 << bit
    reply = imported(client, bytes(wrong), name='wrong')
    assert 'the capsule' in reply['error'] and 'status' not in reply


@pytest.mark.parametrize('cut', [1, 8, 9, 500, -1])
def test_truncated_capsule_is_refused(session, cut):
    client, capsule = session
    assert 'the capsule' in imported(client, capsule[:cut], name='cut')['error']


@pytest.mark.parametrize('wrong', [b'', 'capsule', 5, [1], None], ids=str)
def test_invalid_capsule_is_refused_by_its_key(session, wrong):
    client, _ = session
    assert 'capsule' in imported(client, wrong, name='none')['error']


def test_a_capsule_that_no_message_could_bring_back_is_not_exported(monkeypatch):
    monkeypatch.setattr('embodied_kv.serving.websocket.session.packed', lambda _: bytes(2**20))
    with running_server(max_message_mib=1) as opened, opened.client() as client:
        reply = client.infer({'endpoint': 'snapshot', 'name': 'a'} | ARM)
        reply = client.infer({'endpoint': 'export', 'name': 'a'} | ARM)
        assert 'raise max_message_mib' in reply['error'] and 'capsule' not in reply
        assert client.infer({'endpoint': 'restore', 'name': 'a'} | ARM)['name'] == 'a'


def test_export_without_a_capsule_is_refused():
    with running_server() as opened, opened.client() as client:
        assert 'must have a capsule' in client.infer({'endpoint': 'export'} | ARM)['error']
        exported(client)
        reply = client.infer({'endpoint': 'export', 'name': 'none'} | ARM)
        assert "no capsule 'none'" in reply['error']


def test_a_robot_of_a_policy_server_cannot_fork_a_capsule():
    session, tensors = RemoteHost(TINY).session('forked'), {'server/capsule': torch.ones(3).byte()}
    registry = Registry('policy server')
    registry.add(Capsule('a', Boundary('s', 0, 0), 'policy server', tensors, {'server': {}}))
    session.set_registry(registry)
    with pytest.raises(CapsuleError, match='cannot fork'):
        session.fork('a', [Branch()])


def test_newest_capsule_after_an_import_is_the_newest_of_this_server(clients):
    here, there = clients
    for n in range(4):
        here.infer(libero(n) | ARM)
    imported(there, exported(here, 'old'))
    there.infer(libero() | ARM)
    there.infer({'endpoint': 'snapshot', 'name': 'new'} | ARM)
    there.infer({'endpoint': 'export', 'name': 'old'} | ARM)  # used most recently
    assert there.infer({'endpoint': 'export'} | ARM)['name'] == 'new'
    assert there.infer({'endpoint': 'restore'} | ARM)['name'] == 'new'
