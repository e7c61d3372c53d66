"""If the action node dies during a step, its end is never reported.

The mission does not wait for it longer than the time limit and a timeout.
"""

from types import SimpleNamespace

import pytest
from rclpy.task import Future

from embodied_kv.nodes.missions import clients
from embodied_kv.nodes.missions.clients import MissionClients
from embodied_kv.planning.mission import MissionInterruptedError


class Killed(MissionClients):
    """Clients whose goal is accepted but never gets a result."""

    def __init__(self):
        self._reason, self._acting = '', SimpleNamespace(server_is_ready=lambda: True)

    def _on_node(self, send):
        return send()

    def _send_goal(self, goal):
        accepted = Future()
        accepted.set_result(SimpleNamespace(accepted=True))
        return accepted

    def _result(self, handle):
        return Future()


def test_a_step_ends_once_its_time_and_patience_are_over(monkeypatch):
    monkeypatch.setattr(clients, 'PATIENCE', 0.05)
    with pytest.raises(MissionInterruptedError, match='does not answer'):
        Killed().act('reach the red cube', 0.05)
