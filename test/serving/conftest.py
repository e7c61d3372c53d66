"""A slow machine is no silent client: handshakes and pings have as long as all tests wait for."""

import pytest
from door_cases import PATIENCE

from embodied_kv.serving.websocket import hold, server


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(server, 'OPENING_SECONDS', PATIENCE)
    monkeypatch.setattr(hold, 'ANSWER_SECONDS', PATIENCE)
