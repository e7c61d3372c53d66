"""A node without an engine declares no parameter of one, and still says how it is."""

import pytest
from diagnostic_msgs.msg import DiagnosticArray

from embodied_kv.nodes.fleet.client_node import FleetClient
from embodied_kv.nodes.perception import Perception


@pytest.mark.parametrize('kind, has', [(FleetClient, False), (Perception, True)])
def test_only_a_node_on_an_engine_has_its_parameters(robot, kind, has):
    node = robot.bring(kind)
    assert node.has_parameter('engine.rows') == has
    assert node.has_parameter('rate') and node.has_parameter('camera_timeout')


def test_its_diagnostics_tell_of_rounds_and_of_no_cache(robot):
    heard = []
    robot.node.create_subscription(DiagnosticArray, '/diagnostics', heard.append, 10)
    node = robot.up(FleetClient)
    name = node.get_fully_qualified_name().lstrip('/')

    def told():
        return [s for a in heard for s in a.status if s.name == name]

    robot.until(told)
    keys = {value.key for value in told()[0].values}
    assert {'rounds', 'memory (MiB)'} <= keys and 'rows used' not in keys
