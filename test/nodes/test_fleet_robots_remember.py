"""Robots of a fleet remember and plan by one planner, each in its own namespace and folder."""

import pytest
from fleet_suite import Fleets
from memory_suite import QUESTION, SERVICES, TABLE, parameters, segments

from embodied_kv.demo.domain import DONE
from embodied_kv.demo.sim.language import NARRATE, SUBTASK
from embodied_kv.msg import MemorySegment, MissionState, TextDelta
from embodied_kv.nodes import robot_memory
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.planning import robot_folder
from embodied_kv.planning.notes import HEARD
from embodied_kv.srv import MemoryPlan, MemoryStats

OTHER = (('green ball', 'object', 'green ball: under the chair'),)


@pytest.fixture
def fleet(robots, tmp_path):
    return Fleets(robots, tmp_path)


def up(fleet, tmp_path, count=2, **options):
    """A fleet with memory, and robots whose services are there."""
    given = parameters(tmp_path, **options)
    node = fleet.up(memory=True, capsules=False, language=False, **given)
    return node, *(joined(fleet, fleet.join(seed=i)) for i in range(count))


def joined(fleet, robot):
    client = robot.node.create_client(MemoryStats, 'memory/stats')
    fleet.until(client.service_is_ready)
    robot.node.destroy_client(client)
    return robot


def call(fleet, robot, verb, **fields):
    return fleet.call(robot, SERVICES[verb], f'memory/{verb}', **fields)


def done(fleet, robot, verb, **fields):
    response = call(fleet, robot, verb, **fields)
    assert response.success, response.message
    return response


def texts(fleet, robot):
    found = done(fleet, robot, 'query', segments=1000).segments
    return {segment.id: segment.text for segment in found}


def test_what_a_robot_knows_no_other_knows(fleet, tmp_path):
    node, a, b = up(fleet, tmp_path)
    done(fleet, a, 'upsert', segments=segments(*TABLE))
    assert texts(fleet, b) == {}
    done(fleet, b, 'upsert', segments=segments(*OTHER))
    assert len(texts(fleet, a)) == 3 and texts(fleet, b)['green ball'].endswith('the chair')
    assert not call(fleet, b, 'remove', id='red cube').success
    done(fleet, b, 'remove', id='green ball')
    assert 'green ball' in texts(fleet, a)
    for robot in (a, b):
        assert (tmp_path / 'memory' / robot.namespace.strip('/')).is_dir()


def test_plans_that_alternate_equal_those_of_a_robot_alone(fleet, tmp_path):
    _, a, b = up(fleet, tmp_path, step_tokens=8)
    alone = {}
    for robot, known in ((a, TABLE), (b, OTHER)):
        done(fleet, robot, 'upsert', segments=segments(*known))
        done(fleet, robot, 'plan', question=QUESTION)
        alone[robot] = done(fleet, robot, 'plan', question=QUESTION, method='full')
    asked = {}
    for robot in (a, b) * 2:
        client = robot.node.create_client(MemoryPlan, 'memory/plan')
        fleet.until(client.service_is_ready)
        asked[client] = (
            robot,
            client.call_async(MemoryPlan.Request(question=QUESTION, method='full')),
        )
    for robot, future in asked.values():
        fleet.until(future.done)
        made = future.result()
        assert made.success and made.text == alone[robot].text, made.message
        assert made.segments == alone[robot].segments


def test_what_is_observed_said_and_told_is_remembered_by_its_robot(fleet, tmp_path):
    node, a, b = up(fleet, tmp_path)
    observe = a.node.create_publisher(MemorySegment, 'memory/observe', 10)
    fleet.until(observe.get_subscription_count)
    observe.publish(*segments(('mug', 'object', 'mug: on the left table')))
    a.ask(0)  # its instruction is `reach 0`
    b.ask(0)
    fleet.until(lambda: a.got() and b.got())
    for query, text in ((SUBTASK, DONE), (NARRATE, 'the red cube is in the blue bin')):
        message = TextDelta(stream=1, query=query, text=text, finished=True, reason='eos')
        message.header.stamp = conversions.stamp(1_000_000_000 + HEARD)
        node._said(a.namespace, message)
    fleet.until(lambda: len(texts(fleet, a)) == 3)
    assert texts(fleet, a) == {
        'mug': 'mug: on the left table',
        'task 1': 'task 1: reach 0',
        'red cube': 'red cube: in the blue bin',
    }
    assert texts(fleet, b) == {}


def test_while_a_robots_mission_runs_no_answer_tells_it_of_a_thing(fleet, tmp_path, monkeypatch):
    follow, followed = robot_memory.RobotMemory.follow, []

    def noted(memory, message):
        follow(memory, message)
        followed.append(message)

    monkeypatch.setattr(robot_memory.RobotMemory, 'follow', noted)
    node, a, b = up(fleet, tmp_path)
    states = a.node.create_publisher(MissionState, 'mission/state', qos.STATUS)
    fleet.until(states.get_subscription_count)
    states.publish(MissionState(mission='tidy up', running=True))
    fleet.until(lambda: followed)
    for robot in (a, b):
        message = TextDelta(query='Where is the red cube?', text='on the table')
        message.finished, message.reason = True, 'eos'
        message.header.stamp = conversions.stamp(1_000_000_000)
        node._said(robot.namespace, message)
    fleet.until(lambda: texts(fleet, b))
    assert texts(fleet, b) == {'red cube': 'red cube: on the table'} and texts(fleet, a) == {}


def test_a_robot_that_comes_back_knows_what_it_knew(fleet, tmp_path):
    node, a, b = up(fleet, tmp_path)
    done(fleet, a, 'upsert', segments=segments(*TABLE))
    for publisher in (a.requests, a.finished):
        a.node.destroy_publisher(publisher)
    fleet.until(lambda: node._memory.robots == [b.namespace])
    again = joined(fleet, fleet.join(namespace=a.namespace))
    assert len(texts(fleet, again)) == 3


def test_a_robot_that_leaves_amid_a_plan_harms_nobody(fleet, tmp_path, caplog):
    node, a, b = up(fleet, tmp_path, step_tokens=1)
    for robot in (a, b):
        done(fleet, robot, 'upsert', segments=segments(*TABLE))
    client = a.node.create_client(MemoryPlan, 'memory/plan')
    fleet.until(client.service_is_ready)
    client.call_async(MemoryPlan.Request(question=QUESTION))
    memory = node._memory._memories[a.namespace]
    fleet.until(memory._computes.locked)
    for publisher in (a.requests, a.finished):
        a.node.destroy_publisher(publisher)
    fleet.until(lambda: node._memory.robots == [b.namespace])
    assert done(fleet, b, 'plan', question=QUESTION).text
    again = joined(fleet, fleet.join(namespace=a.namespace))
    assert len(texts(fleet, again)) == 3
    assert not caplog.records


def test_a_folder_that_cannot_be_used_leaves_one_robot_without_memory(fleet, tmp_path):
    given = parameters(tmp_path)
    (tmp_path / 'memory').mkdir()
    (tmp_path / 'memory' / 'broken').write_text('this is no folder')
    fleet.up(memory=True, capsules=False, language=False, **given)
    broken = fleet.join(namespace='/broken')
    other = joined(fleet, fleet.join())
    done(fleet, other, 'upsert', segments=segments(*TABLE))
    client = broken.node.create_client(MemoryStats, 'memory/stats')
    assert not client.wait_for_service(0.5)
    broken.ask(0)
    fleet.until(broken.got)  # it is served all the same


def test_rounds_are_answered_while_plan_after_plan_is_made(fleet, tmp_path):
    node, a, b = up(fleet, tmp_path, precompute=True)
    done(fleet, a, 'upsert', segments=segments(*TABLE))
    client = a.node.create_client(MemoryPlan, 'memory/plan')
    fleet.until(client.service_is_ready)
    futures = [client.call_async(MemoryPlan.Request(question=QUESTION)) for _ in range(3)]
    for round in range(4):
        for robot in (a, b):
            robot.ask(round)
        fleet.until(lambda n=round: n in a.got() and n in b.got())
    fleet.until(lambda: all(future.done() for future in futures))
    assert all(future.result().success for future in futures)
    node.host.engine.kv.check_integrity()


def test_without_a_planner_the_fleet_serves_and_says_why(fleet, tmp_path, monkeypatch, capfd):
    def missing(name):
        raise ValueError(f"no planner '{name}' comes with this package: train one")

    monkeypatch.setattr(robot_folder, 'bundled_planner', missing)
    node = fleet.up(memory=True, capsules=False, language=False)
    assert node._memory is None
    assert 'memory stays unconfigured: no planner' in capfd.readouterr().err
    robot = fleet.join()
    robot.ask(0)
    fleet.until(robot.got)
