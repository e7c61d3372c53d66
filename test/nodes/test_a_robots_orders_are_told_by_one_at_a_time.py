"""What a restore tells a robot of a fleet is whole: nobody looks or tells meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from embodied_kv.nodes.control.session_parts import InstructionPart
from embodied_kv.nodes.fleet.missions import FleetCrew
from embodied_kv.nodes.fleet.robot_proxy import RobotProxy, RoundPart
from embodied_kv.planning.mission_part import MissionPart
from embodied_kv.srv import FleetFreeze


@pytest.fixture
def proxy():
    """asked: for what the robot was asked."""
    node = SimpleNamespace(create_client=lambda kind, name: name)
    proxy, proxy.asked = RobotProxy(node, '/a', None, ()), []
    proxy._ask = lambda client, request: proxy.asked.append(client) or FleetFreeze.Response()
    return proxy


def test_nobody_looks_while_an_order_is_made(proxy, monkeypatch):
    monkeypatch.setattr('embodied_kv.nodes.fleet.messages.left', lambda *given: None)
    with ThreadPoolExecutor(1) as thread:
        with proxy.ordered():
            proxy.look()  # whoever orders
            other = thread.submit(proxy.look)
            proxy.tell('go')
            proxy.send()
            assert proxy.asked == ['/a/fleet/freeze', '/a/fleet/resume']
        other.result(60.0)
    assert proxy.asked[2:] == ['/a/fleet/freeze']


def test_a_rewind_orders_nothing():
    crew, left_out = object.__new__(FleetCrew), []
    crew._calls = SimpleNamespace(check=lambda: None)
    crew._boundaries = SimpleNamespace(go_back=lambda but: left_out.extend(but))
    crew.rewind()
    assert {InstructionPart.name, MissionPart.name, RoundPart.name} == {*left_out}
