"""`mission` of each robot of a fleet: two at once, of which one ends and the other goes on.

The fleet and its frames are real; what the robots see, say, remember and do is a stand-in's.
"""

from types import SimpleNamespace

import pytest
from action_msgs.msg import GoalStatus
from fleet_suite import Fleets
from mission_suite import TableSuite
from rclpy.action import ActionClient

from embodied_kv.action import Mission as MissionAction
from embodied_kv.demo.sim.mission_table import TABLE, KnownTable
from embodied_kv.demo.sim.missions import Mission, Part, Which
from embodied_kv.nodes.fleet.messages import FREEZE, RESUME
from embodied_kv.srv import CapsuleRollback, CapsuleSnapshot, FleetFreeze, FleetResume

PLACES = ('green bin', 'blue bin')


class MissionRobot(TableSuite):
    """A robot of the fleet with a table of its own. frozen: how often it was looked at."""

    def __init__(self, fleet, thing, place, **how):
        self.asker = fleet.join(**how)
        lying = KnownTable({thing: TABLE}, PLACES)
        super().__init__(
            self.asker.robot, lying, Mission((Part('put', Which(names=(thing,)), place),))
        )
        self.fleet, self.step, self.frozen = fleet, f'put the {thing} into the {place}', 0
        self.robot.executor, self.resumed = fleet.first.executor, []
        node, self.space = self.robot.node, self.asker.namespace
        node.create_service(FleetFreeze, FREEZE, self._freeze)
        node.create_service(FleetResume, RESUME, self._resume)
        self._client = ActionClient(node, MissionAction, 'mission')
        fleet.until(self._client.server_is_ready)
        fleet.until(lambda: self.space in fleet.node._missions.missions)
        self.node = SimpleNamespace(mission=fleet.node._missions.missions[self.space])

    def _freeze(self, _, response):
        self.frozen += 1
        response.success, response.task, response.next = True, 'a', 7
        response.seen = self.asker.request().observation
        return response

    def _resume(self, request, response):
        self.resumed.append(request)
        response.success, response.task = True, 'b'
        return response


@pytest.fixture
def fleet(robots, tmp_path):
    fleet = Fleets(robots, tmp_path)
    fleet.up(language=False, missions=True)
    return fleet


@pytest.fixture
def two(fleet):
    return MissionRobot(fleet, 'red cube', 'green bin'), MissionRobot(
        fleet, 'blue cylinder', 'blue bin', seed=1
    )


def test_each_robot_carries_out_its_own(two):
    goals = [robot.send() for robot in two]
    for robot, goal in zip(two, goals, strict=True):
        status, result = robot.result(goal)
        assert status == GoalStatus.STATUS_SUCCEEDED, result.message
        assert robot.calls == [robot.step] and result.steps == 1
        assert {told.mission for told in robot.told} == {'tidy up'}


def test_of_two_at_once_one_is_cancelled_and_the_other_goes_on(two):
    one, other = two
    one.slow = other.slow = True
    first, second = one.send(), other.send()
    one.robot.until(lambda: one.goals and other.goals, show=False)
    one.robot.until(first.cancel_goal_async().done, show=False)
    status, result = one.result(first)
    assert (status, result.message) == (GoalStatus.STATUS_CANCELED, 'cancelled')
    one.robot.until(lambda: not one.goals, show=False)  # its arm comes to rest
    assert other.goals and other.node.mission.state.acting == other.step
    one.robot.until(lambda: any(told.step for told in other.feedback), show=False)
    other.slow = False
    other.goals = [(handle, 0.0, other.act(other.step)) for handle, _, _ in other.goals]
    assert other.result(second)[1].success


def test_a_look_is_at_a_new_frame_of_the_robot_alone(fleet, two):
    one, other = two
    assert one.result(one.send())[1].success
    kept = fleet.node._kept
    assert one.frozen >= 2 and other.frozen == 0
    assert kept.newest(one.space) is not None and kept.newest(other.space) is None
    fleet.node.host.engine.kv.check_integrity()


def test_a_robot_that_shows_nothing_ends_its_mission_and_no_other(two):
    one, other = two
    blind = one.asker.request()
    blind.observation.views, blind.observation.images = [], []
    one.asker.request = lambda: blind
    status, result = one.result(one.send())
    assert status == GoalStatus.STATUS_ABORTED and 'view' in result.message, result.message
    assert other.result(other.send())[1].success


def test_a_mission_goes_back_with_its_robots_capsule_and_on_from_there(fleet, two):
    one, other = two
    one.slow = other.slow = True
    goal, _ = one.send(), other.send()
    one.robot.until(lambda: one.goals and other.goals, show=False)
    assert fleet.call(one.robot, CapsuleSnapshot, 'capsule/snapshot', name='here').success
    one.robot.until(goal.cancel_goal_async().done, show=False)
    one.result(goal)
    one.robot.until(lambda: not one.goals and not one.told[-1].running, show=False)
    one.slow, one.told[:] = False, []
    back = fleet.call(one.robot, CapsuleRollback, 'capsule/rollback', name='here')
    assert back.success, back.message
    one.robot.until(lambda: one.told and not one.told[-1].running, show=False)
    assert one.told[-1].success and one.told[0].mission == 'tidy up'
    assert one.resumed[-1].next == 7 and not other.resumed
    assert other.node.mission.state.acting == other.step


def test_a_robot_that_leaves_takes_its_mission_with_it(fleet, two):
    one, other = two
    one.slow = other.slow = True
    assert one.send().accepted and other.send().accepted
    one.robot.until(lambda: one.goals and other.goals, show=False)
    for publisher in (one.asker.requests, one.asker.finished):
        one.asker.node.destroy_publisher(publisher)
    missions = fleet.node._missions
    fleet.until(lambda: [*missions.missions] == [other.space])
    fleet.until(lambda: not one.goals)
    assert other.node.mission.state is not None and other.goals


def test_missions_end_with_the_fleet(fleet, two, caplog):
    one, other = two
    one.slow = other.slow = True
    assert one.send().accepted and other.send().accepted
    one.robot.until(lambda: one.goals and other.goals, show=False)
    fleet.node.trigger_deactivate()
    fleet.until(lambda: not one.goals and not other.goals)
    assert not fleet.node._missions.missions and not caplog.records
