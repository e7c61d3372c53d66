"""A slow machine is no silent client: handshakes and pings have as long as all tests wait for."""

import pytest
from server_cases import PATIENCE

from embodied_kv.serving.websocket import handler, server


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(server, 'OPENING_SECONDS', PATIENCE)
    monkeypatch.setattr(handler, 'ANSWER_SECONDS', PATIENCE)
