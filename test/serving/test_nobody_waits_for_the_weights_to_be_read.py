"""Capsules say of which weights they are: these are read before the door opens, and once."""

import logging

import pytest
from door_cases import door, libero

from embodied_kv.serving.websocket import sessions


@pytest.fixture
def read(monkeypatch):
    fingerprint, engines = sessions.fingerprint, []

    def counted(engine):
        engines.append(engine)
        return fingerprint(engine)

    monkeypatch.setattr(sessions, 'fingerprint', counted)
    return engines


def test_they_are_read_before_anybody_comes_in_and_never_again(read):
    with door() as opened:
        assert read == [opened.engine]
        with opened.client() as client:
            client.infer(libero())
            for name in ('a', 'b'):
                assert name in client.infer({'endpoint': 'snapshot', 'name': name})['capsules']
        assert read == [opened.engine]


def test_it_is_said_where_it_takes_long(read, monkeypatch, caplog):
    with caplog.at_level(logging.INFO), door():
        assert 'of weights' not in caplog.text
        monkeypatch.setattr(sessions, 'LARGE', 1)
        with door():
            assert 'GiB of weights, once, for capsules' in caplog.text
