"""Misbehaving clients of benchmark serving leave nothing behind and harm no other client."""

import asyncio
import sys
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).parents[2] / 'test/serving'))

from server_cases import running_server, tabletop, until

from benchmarks.common.workers import received
from benchmarks.serving.chaos import LIMITS
from benchmarks.serving.mob import Mob, _behave
from embodied_kv.serving.websocket import codec

WAYS = ('come_and_go', 'leave', 'stall', 'hang', 'flood', 'magnify', 'lie', 'overfill', 'keep')


@pytest.fixture(scope='module')
def opened():
    with running_server('tabletop', max_message_mib=LIMITS.max_message_mib) as server:
        yield server


@pytest.mark.parametrize('way', WAYS)
def test_nothing_is_left_of_a_client(opened, way, monkeypatch):
    monkeypatch.setattr('benchmarks.serving.mob.LONGEST', 0.1)
    mob = Mob(opened.port, tabletop(), 0)

    async def twice():
        for _ in range(2):
            await getattr(mob, way)()

    asyncio.run(twice())
    until(lambda: opened.sessions.values()['sessions'] == 0)
    until(lambda: opened.server.counts()['sockets'] == 0)
    until(lambda: opened.sessions.values()['robots'] == 0)
    until(lambda: opened.engine.kv.stats().leases == 0)


def test_good_clients_are_timed_and_a_fault_of_theirs_is_told(opened):
    asked = codec.pack(tabletop())
    seconds, faults = asyncio.run(_behave(opened.port, asked, 2, 0.3, 0.1))
    assert len(seconds) >= 2 and all(s > 0 for s in seconds) and not faults
    seconds, faults = asyncio.run(_behave(opened.port, codec.pack({}), 2, 0.3, 0.1))
    assert not seconds and len(faults) == 2 and 'front must be present' in faults[0]


def test_a_child_that_ends_without_a_word_is_told_of():
    ended = SimpleNamespace(name='the mob', exitcode=3, is_alive=lambda: False)
    told = Queue()
    told.put('before it ended')
    assert received(told, ended) == 'before it ended'
    with pytest.raises(RuntimeError, match='the mob failed: exit status 3'):
        received(told, ended)
