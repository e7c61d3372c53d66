"""The robot's side: it asks, executes H actions of each answer, and holds when one is late."""

import numpy as np
import pytest
from fleet_suite import Fleets
from rclpy.parameter import Parameter
from std_msgs.msg import String

from embodied_kv.control.trajectory_executor import FRESH, HOLD, PREVIOUS, SOURCES, STOP
from embodied_kv.msg import FleetAnswer, FleetRequest
from embodied_kv.nodes.fleet.client_node import FleetClient
from embodied_kv.nodes.fleet.messages import ANSWER, ANSWERS, REQUEST, REQUESTS


@pytest.fixture
def fleet(robots, tmp_path):
    return Fleets(robots, tmp_path)


def sources(chunks):
    return [SOURCES[chunk.source] for chunk in chunks]


def test_it_acts_on_the_fleets_chunks_and_tells_what_it_executed(fleet, robots):
    node = fleet.up(trace='', robot_timeout=60.0)
    robot = robots()
    asked = []
    robot.node.create_subscription(FleetRequest, REQUEST, asked.append, REQUESTS)
    robot.up(FleetClient, execution_horizon='static:4', request_ahead=1)
    fleet.first.executor.add_node(robot.suite[0])  # one thread serves both
    robot.executor.remove_node(robot.suite[0])

    def more():
        robot.show()
        robot.spin(0.05)
        fleet.first.spin(0.05)
        return len([c for c in robot.chunks if SOURCES[c.source] == FRESH]) >= 3

    fleet.until(more)
    fresh = [c for c in robot.chunks if SOURCES[c.source] == FRESH]
    assert all(
        c.execution_horizon == 4 and c.chunk_size == 6 and len(c.confidence) == 6 for c in fresh
    )
    assert [c.sequence for c in fresh] == sorted(c.sequence for c in fresh)
    assert robot.trajectories
    told = [m.execution[0] for m in asked if len(m.execution)]
    assert told and all(m.end >= m.start for m in told)
    assert node._server.dispatcher.ledger.robots[robot.namespace].task.wait.execution > 0


def test_an_execution_horizon_that_is_set_goes_into_the_next_request(robots):
    robot = robots()
    server = Server(robot)
    client = robot.up(FleetClient, execution_horizon='static:4', retry_interval=0.05)
    robot.until(lambda: server.asked)
    assert server.asked[-1].execution_horizon == 'static:4'
    answer = client.set_parameters([Parameter('execution_horizon', value='static:2')])[0]
    assert answer.successful
    robot.until(lambda: server.asked[-1].execution_horizon == 'static:2')


class Server:
    """The fleet's end of one robot's topics, played by the test."""

    def __init__(self, robot):
        self.asked = []
        robot.node.create_subscription(FleetRequest, REQUEST, self.asked.append, REQUESTS)
        self.answers = robot.node.create_publisher(FleetAnswer, ANSWER, ANSWERS)

    def answer(self, request, names, horizon=3, actions=6, **other):
        values = np.full((actions, len(names)), 0.1, np.float32)
        message = FleetAnswer(
            task=request.task,
            round=request.round,
            verdict=FleetAnswer.ANSWERED,
            execution_horizon=horizon,
            joint_names=names,
            dt=0.1,
            values=values.ravel(),
            confidence=np.ones(actions, np.float32),
            steps=10,
        )
        message.header.stamp = request.observation.header.stamp
        for name, value in other.items():
            setattr(message, name, value)
        self.answers.publish(message)


def test_late_answers_make_it_hold_and_then_stop_and_it_comes_back(robot):
    server = Server(robot)
    node = robot.up(FleetClient, stop_after=1, request_ahead=0)
    robot.until(lambda: server.asked)
    names = list(node.embodiment.axes)
    server.answer(server.asked[-1], names)
    robot.until(lambda: FRESH in sources(robot.chunks))
    robot.until(lambda: STOP in sources(robot.chunks))
    heard = sources(robot.chunks)[sources(robot.chunks).index(FRESH) :]
    assert {HOLD, STOP} <= set(heard) <= {FRESH, PREVIOUS, HOLD, STOP}
    request = server.asked[-1]
    assert request.round == 1 and request.execution[0].round == 0
    assert request.execution[0].remaining == 0
    assert request.execution[0].end - request.execution[0].start == pytest.approx(0.3, abs=0.02)
    count = heard.count(FRESH)
    server.answer(request, names)
    robot.until(lambda: sources(robot.chunks).count(FRESH) > count)


@pytest.mark.parametrize(
    'wrong',
    [
        dict(horizon=7),
        dict(confidence=[]),
        dict(joint_names=['elbow']),
        dict(verdict=FleetAnswer.REFUSED, message='no'),
    ],
)
def test_an_answer_that_cannot_be_used_is_counted_and_the_next_round_comes(robot, wrong):
    server = Server(robot)
    node = robot.up(FleetClient)
    robot.until(lambda: server.asked)
    names = list(node.embodiment.axes)
    server.answer(server.asked[-1], names, **wrong)
    robot.until(lambda: server.asked[-1].round == 1)
    assert sum(node.warning_counts[kind] for kind in ('answer', 'refused')) == 1
    assert FRESH not in sources(robot.chunks)


def test_another_instruction_is_another_task(robot):
    server = Server(robot)
    node = robot.up(FleetClient)
    robot.until(lambda: server.asked)
    first = server.asked[-1].task
    server.answer(server.asked[-1], list(node.embodiment.axes))
    robot.instruction.publish(String(data='pick up the cup'))
    robot.until(lambda: server.asked[-1].task != first)
    assert server.asked[-1].observation.instruction == 'pick up the cup'
    assert server.asked[-1].round == 0
