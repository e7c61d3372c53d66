"""Through ROS: repeated, late and malformed requests, horizons, robots that go."""

import json
import threading

import pytest
from fleet_suite import JOINTS, Asker, Fleets, ran
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from embodied_kv.fleet import trace
from embodied_kv.msg import FleetAnswer, FleetExecution


@pytest.fixture
def fleet(robots, tmp_path):
    return Fleets(robots, tmp_path)


def test_a_repetition_is_served_once_and_hears_the_same_chunk(fleet):
    fleet.up()
    robot = fleet.join()
    robot.ask()
    fleet.until(lambda: robot.got())
    robot.ask()
    fleet.until(lambda: len(robot.verdicts(FleetAnswer.ANSWERED)) == 2)
    first, again = robot.verdicts(FleetAnswer.ANSWERED)
    assert list(first.values) == list(again.values)
    assert fleet.counts['served'] == 1


def test_a_late_round_is_late(fleet):
    fleet.up()
    robot = fleet.join()
    robot.ask(5)
    fleet.until(lambda: robot.got())
    robot.ask(4)
    fleet.until(lambda: robot.verdicts(FleetAnswer.LATE))
    robot.ask(0, task='b')
    fleet.until(lambda: robot.got('b'))
    robot.ask(6)  # of a task that is over
    fleet.until(lambda: len(robot.verdicts(FleetAnswer.LATE)) == 2)
    assert fleet.counts['served'] == 2


@pytest.mark.parametrize(
    'change, reason',
    [
        (dict(horizon='import:os'), "horizon policy 'import:os'"),
        (dict(horizon='x' * 1000), 'execution_horizon must be 1 to 128 printable'),
        (dict(task=''), 'task must be 1 to 128 printable'),
        (dict(round=2**63), 'round must be a whole number'),
        (dict(round=1, ran=[FleetExecution(round=1)]), 'execution.round 1 is not before'),
        (
            dict(round=1, ran=[FleetExecution(start=float('nan'))]),
            'execution.start must be finite seconds (got nan',
        ),
        (dict(instruction=' '), 'the instruction is empty'),
        (dict(views=['front']), '2 images for 1 views'),
        (dict(views=['front', 'front']), 'a view comes twice'),
        (dict(views=['front', 'moon']), "no view 'moon'"),
        (dict(images=[], views=[]), '0 images for 0 views'),
        (dict(joints=JointState(name=JOINTS, position=[float('nan')] * 7)), 'shoulder_pan is not'),
        (dict(joints=JointState()), 'shoulder_pan is not told'),
    ],
)
def test_a_malformed_request_is_refused_and_the_others_are_served(fleet_of_module, change, reason):
    fleet, bad, good = fleet_of_module
    bad.answers.clear()
    executions = change.pop('ran', [])
    message = bad.request(**change)
    message.execution = executions
    bad.requests.publish(message)
    fleet.until(lambda: bad.answers)
    assert bad.answers[0].verdict == FleetAnswer.REFUSED
    assert reason in bad.answers[0].message
    rounds = len(good.got())
    good.ask(rounds)
    fleet.until(lambda: len(good.got()) == rounds + 1)


@pytest.fixture(scope='module')
def fleet_of_module(robots_of_module, tmp_path_factory):
    fleet = Fleets(robots_of_module, tmp_path_factory.mktemp('fleet'))
    fleet.up()
    return fleet, fleet.join(seed=1), fleet.join(seed=2)


def test_the_horizon_is_the_requests_or_the_fleets(fleet):
    fleet.up(execution_horizon='static:2')
    robot = fleet.join()
    for round, (text, expected) in enumerate(
        [('static:5', 5), ('', 2), ('whole', 6), ('confidence:-1:1', 1), ('static:99', 6)]
    ):
        robot.ask(round, horizon=text)
        fleet.until(lambda round=round: round in robot.got())
        assert robot.got()[round].execution_horizon == expected


def test_of_a_robot_that_waits_the_newest_observation_is_served(fleet):
    node = fleet.up()
    robot, other = fleet.join(), fleet.join()
    gate = threading.Event()
    node.host.device.call(gate.wait)
    other.ask()
    fleet.until(lambda: fleet.counts['batches'] == 1)
    robot.ask(stamp=1_000_000_000)
    fleet.until(lambda: robot.verdicts(FleetAnswer.QUEUED))
    robot.ask(stamp=2_000_000_000)
    fleet.until(lambda: robot.verdicts(FleetAnswer.DUPLICATE))
    gate.set()
    fleet.until(lambda: robot.got())
    assert robot.got()[0].header.stamp.sec == 2


def test_a_robot_that_leaves_or_falls_silent_frees_its_place(fleet):
    node = fleet.up(robot_timeout=1.0)
    ledger = node._server.dispatcher.ledger
    gone, silent = fleet.join(), fleet.join()
    for robot in (gone, silent):
        robot.ask()
    fleet.until(lambda: gone.got() and silent.got())
    name = gone.namespace
    gone.node.destroy_publisher(gone.requests)
    fleet.until(lambda: name not in node._connections.robots and name not in ledger.robots)
    fleet.until(lambda: silent.namespace not in ledger.robots)
    silent.ask(1)  # heard of again, it is registered again
    fleet.until(lambda: 1 in silent.got())


def test_a_finished_task_is_over(fleet):
    fleet.up()
    robot = fleet.join()
    robot.ask()
    fleet.until(lambda: robot.got())
    robot.finished.publish(String(data='a'))
    fleet.until(lambda: fleet.node._server.dispatcher.ledger.robots[robot.namespace].task is None)
    robot.ask(1)
    fleet.until(lambda: robot.verdicts(FleetAnswer.LATE))


def test_robots_that_are_not_named_are_not_heard(fleet):
    fleet.up(robots='left, right/arm')
    right = fleet.join(namespace='/right/arm')
    Asker(fleet.robots())
    right.ask()
    fleet.until(lambda: right.got())
    assert fleet.node._connections.robots == ['/right/arm']


def test_what_is_executed_goes_on_the_tape(fleet, tmp_path):
    path = tmp_path / 'trace.jsonl'
    fleet.up(trace=str(path))
    robot = fleet.join()
    robot.ask(0)
    fleet.until(lambda: 0 in robot.got())
    robot.ask(1, ran=ran(0, 0.0, 0.3, remaining=1))
    fleet.until(lambda: 1 in robot.got())
    robot.ask(2, ran=ran(1, 0.3, 0.5))
    fleet.until(lambda: 2 in robot.got())
    period, (first, second) = trace.read(path)
    assert period == pytest.approx(0.1)
    assert (first.horizon, first.start, first.end, first.requested) == (3, 0.0, 0.3, 0)
    assert (second.round, second.horizon, second.requested) == (1, 2, 2)
    assert first.task == f'{robot.namespace}/a'
    assert first.inference > 0 and first.observation_bytes > 2 * 28 * 28 * 3
    assert json.loads(path.read_text().splitlines()[0])['format'] == trace.FORMAT
