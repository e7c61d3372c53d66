"""Requests of one key remove only its own sessions and capsules."""

import pytest
import server_cases
from server_cases import key_file, libero, running_server

from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import NoRoomError, TierCapacities
from embodied_kv.serving.websocket import handler
from embodied_kv.serving.websocket.capsule_budget import CapsuleBudget

ARM = {'session_id': 'arm'}
BYTES = 4096  # per capsule


def test_sessions_of_other_keys_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(handler, 'RENAME_BURST', 1000)
    file, one, other = key_file(tmp_path, 'one', 'other')
    with running_server(api_keys_file=file) as opened:
        with opened.client(key=one) as client:
            client.infer(libero() | ARM)
            client.infer({'endpoint': 'snapshot', 'name': 'home'} | ARM)
        with opened.client(key=other) as client:
            for n in range(20):
                client.infer({'endpoint': 'reset', 'session_id': f's{n}'})
        found = opened.sessions.of_tenants()
        assert found['other']['ended_sessions'] <= 2 and found['one']['ended_sessions'] == 1
        with opened.client(key=one) as client:
            assert client.infer({'endpoint': 'restore', 'name': 'home'} | ARM)['next'] == 1


def test_a_connection_changes_its_session_at_a_bounded_rate(tmp_path, monkeypatch):
    monkeypatch.setattr(handler, 'RENAME_BURST', 2)
    monkeypatch.setattr(handler, 'RENAME_RATE', 1e-3)
    with running_server(request_timeout=1.0) as opened, opened.client() as client:
        for n in range(2):
            client.infer({'endpoint': 'reset', 'session_id': f's{n}'})
        client.infer({'endpoint': 'reset', 'session_id': 's1'})  # unchanged
        with pytest.raises(RuntimeError, match='no answer within'):
            client.infer({'endpoint': 'reset', 'session_id': 's2'})


def capsule(name, size=BYTES):
    return server_cases.capsule(name, size)


def names(registry):
    return [record.name for record in registry.entries()]


@pytest.fixture
def shared():
    """Return sessions of the tenants a, a and b, with room for 4 capsules, 2 of each tenant."""
    budget = CapsuleBudget(4 * BYTES, lambda line: None)
    budget.divide(2)
    each = TierCapacities(4 * BYTES, host=0, disk=0, policy='drop')
    registries = [Registry('f', each) for _ in range(3)]
    for number, (registry, tenant) in enumerate(zip(registries, 'aab', strict=True)):
        budget.share(registry, f'robot {number}', tenant)
    return budget, registries


def test_capsules_are_evicted_within_their_tenant(shared):
    budget, (first, second, other) = shared
    other.add(capsule('kept'))
    for n in range(4):
        first.add(capsule(f'c{n}'))
    assert names(first) == ['c2', 'c3'] and names(other) == ['kept']
    second.add(capsule('new'))  # of the same tenant
    assert (names(first), names(second), names(other)) == (['c3'], ['new'], ['kept'])
    budget.check_integrity()


def test_new_tenant_reduces_the_parts_of_others(shared):
    budget, (first, _, other) = shared
    other.add(capsule('kept'))
    for n in range(2):
        first.add(capsule(f'c{n}'))
    budget.divide(4)
    assert names(first) == ['c1'] and names(other) == ['kept']
    with pytest.raises(NoRoomError, match='all sessions of a key'):
        other.add(capsule('long', 3 * BYTES))
