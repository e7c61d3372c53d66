"""Where the action node dies amid a step, nobody tells its end: a mission does not wait for it."""

from types import SimpleNamespace

import pytest
from rclpy.task import Future

from embodied_kv.nodes.missions import clients
from embodied_kv.nodes.missions.clients import MissionClients
from embodied_kv.planning.mission import MissionInterruptedError


class Killed(MissionClients):
    """Its goal is accepted, and that is the last that is heard."""

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
