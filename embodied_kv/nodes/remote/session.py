"""Capsules and missions of a robot without a model: what its policy server computes is a part."""

from __future__ import annotations

from functools import partial

from embodied_kv.nodes.common.remote_host import RemoteHost
from embodied_kv.nodes.mission import Mission
from embodied_kv.nodes.missions.calls import Calls
from embodied_kv.nodes.remote.server_link import remote_host
from embodied_kv.nodes.session import Session


class RemoteSession(Session):
    """Answers `capsule/*`. The capsules are the robot's, with a capsule of its server in each."""

    on_engine = False

    def find_host(self) -> RemoteHost:
        return remote_host(self)


class RemoteMission(Mission):
    """Serves `mission`. The policy server answers one question at a time."""

    on_engine = False
    calls = staticmethod(partial(Calls, at_once=lambda: 1))

    def find_host(self) -> RemoteHost:
        return remote_host(self)


def session(**arguments: object) -> RemoteSession:
    """The session node of this namespace: as anywhere, there is one."""
    return RemoteSession(**arguments)


def mission(**arguments: object) -> RemoteMission:
    """The mission node of this namespace: as anywhere, there is one."""
    return RemoteMission(**arguments)
