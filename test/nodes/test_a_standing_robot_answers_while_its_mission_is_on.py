"""A standing robot of a fleet asks for no chunks: its frame is spoken of while a mission looks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fleet_suite import Fleets
from rclpy.action import ActionClient
from test_fleet_robots_speak import ask, joined, quiet, serve, stays

from embodied_kv.action import Mission as MissionAction
from embodied_kv.engine.warmup import blank
from embodied_kv.msg import ControlState
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.fleet.messages import FREEZE
from embodied_kv.srv import FleetFreeze


@pytest.fixture
def fleet(robots, tmp_path):
    return Fleets(robots, tmp_path)


@pytest.fixture
def standing(fleet):
    """A robot whose mission looks for the first time, and waits for memory that is not there."""
    node, robot = quiet(fleet, 1, missions=True, robot_timeout=3600.0)
    robot.node.create_service(FleetFreeze, FREEZE, frozen(robot))
    arm = robot.node.create_publisher(ControlState, 'control/state', qos.STATUS)
    arm.publish(ControlState(state=ControlState.ARMED))
    client = ActionClient(robot.node, MissionAction, 'mission')
    fleet.until(client.server_is_ready)
    fleet.until(lambda: robot.namespace in node._missions.missions)
    goal = client.send_goal_async(MissionAction.Goal(mission='tidy up'))
    before = node._kept.newest(robot.namespace)
    fleet.until(lambda: node._kept.newest(robot.namespace) != before)
    cancel = goal.result().cancel_goal_async
    return SimpleNamespace(node=node, robot=robot, cancel=cancel)


def frozen(robot):
    def freeze(_, response):
        response.success, response.task = True, 'a'
        response.seen = robot.request(stamp=2_000_000_000).observation
        return response

    return freeze


def vanish(fleet, standing):
    """It says nothing for too long."""
    standing.node._server.vanish(standing.robot.namespace)
    fleet.until(lambda: fleet.counts['vanished'])


def test_its_silence_ends_no_stream_and_refuses_no_question(fleet, standing):
    node, robot = standing.node, standing.robot
    stays(node)
    stream = ask(fleet, robot).stream
    vanish(fleet, standing)
    assert ask(fleet, robot).success
    live = node.host.engine.kv.streams.live()
    assert stream in [s.id for s in live] and live[0].lease.handle.stamp == 2_000_000_000


def test_after_the_mission_the_frame_of_its_look_is_spoken_of_no_more(fleet, standing):
    node, robot = standing.node, standing.robot
    vanish(fleet, standing)
    assert ask(fleet, robot).success
    standing.cancel()
    fleet.until(lambda: not node._missions.is_on(robot.namespace))
    assert 'no frame' in ask(fleet, robot).message
    serve(fleet, robot, round=1)
    assert ask(fleet, robot).success


def test_a_look_alone_gives_a_robot_no_frame_to_ask_about(fleet):
    node = fleet.up(prompt_interval=0)
    robot = fleet.join()
    joined(fleet, robot)
    kept, engine = node._kept, node.host.engine

    def look():
        (handle,) = engine.prefill([replace(blank(engine), robot=robot.namespace)])
        kept.keep(engine.kv.acquire(handle))

    node.host.device.call(look).result()
    assert 'no frame' in ask(fleet, robot).message
