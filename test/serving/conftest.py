"""Handshakes and pings may take as long as tests wait, so that a slow machine fails no test."""

import pytest
from server_cases import PATIENCE

from embodied_kv.serving.websocket import handler, server


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(server, 'OPENING_SECONDS', PATIENCE)
    monkeypatch.setattr(handler, 'ANSWER_SECONDS', PATIENCE)
