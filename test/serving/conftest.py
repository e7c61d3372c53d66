"""A slow machine is no silent client: a handshake has as long as all that tests wait for."""

import pytest
from door_cases import PATIENCE

from embodied_kv.serving.websocket import server


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(server, 'OPENING_SECONDS', PATIENCE)
