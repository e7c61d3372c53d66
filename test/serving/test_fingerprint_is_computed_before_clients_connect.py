"""The fingerprint for capsules is computed once, before clients connect."""

import logging

import pytest
from server_cases import libero, running_server

from embodied_kv.serving.websocket import sessions


@pytest.fixture
def read(monkeypatch):
    fingerprint, engines = sessions.fingerprint, []

    def counted(engine):
        engines.append(engine)
        return fingerprint(engine)

    monkeypatch.setattr(sessions, 'fingerprint', counted)
    return engines


def test_weights_are_read_once_before_clients_connect(read):
    with running_server() as opened:
        assert read == [opened.engine]
        with opened.client() as client:
            client.infer(libero())
            for name in ('a', 'b'):
                assert name in client.infer({'endpoint': 'snapshot', 'name': name})['capsules']
        assert read == [opened.engine]


def test_long_computation_is_logged(read, monkeypatch, caplog):
    with caplog.at_level(logging.INFO), running_server():
        assert 'of weights' not in caplog.text
        monkeypatch.setattr(sessions, 'LARGE', 1)
        with running_server():
            assert 'GiB of weights, once, for capsules' in caplog.text
