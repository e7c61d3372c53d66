"""Once the other engine has a robot's frame, its row of an earlier one is not its newest."""

import threading

from fleet_suite import Fleets
from test_fleet_robots_speak import ask, joined, serve
from test_fleet_uses_a_second_engine import PlayedEngine

from embodied_kv.nodes.fleet import server_node
from embodied_kv.serving.served_part import ServedPart


def test_who_is_served_elsewhere_has_no_older_frame_to_ask_of_or_freeze(
    robots, tmp_path, monkeypatch
):
    monkeypatch.setattr(server_node, 'RemoteEngine', PlayedEngine)
    fleet = Fleets(robots, tmp_path)
    node = fleet.up(cloud='local', cloud_device='cpu', cloud_latency=0.001, prompt_interval=0)
    busy, robot = fleet.join(seed=1), fleet.join(seed=2)
    joined(fleet, robot)
    serve(fleet, robot)
    kept = node._kept
    assert kept.newest(robot.namespace) is not None and not node._cloud.served

    gate = threading.Event()
    node.host.device.call(gate.wait)
    busy.ask()
    fleet.until(lambda: fleet.counts['batches'] == 2)
    robot.ask(1)
    fleet.until(lambda: 1 in robot.got())  # while the edge is busy
    gate.set()
    fleet.until(busy.got)
    assert node._cloud.served == [robot.namespace]
    assert kept.newest(robot.namespace) is None and kept.newest(busy.namespace) is not None
    assert 'no frame' in ask(fleet, robot).message
    part = ServedPart(node.host.engine, robot.namespace, kept, node._shares)
    assert part.freeze().facts['current'] is None and part.stamp == 0
    serve(fleet, robot, round=2)
    assert ask(fleet, robot).success
    node.host.engine.kv.check_integrity()
