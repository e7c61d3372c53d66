"""`capsule/*` in a robot's namespace: row, chunk, round and instruction come back."""

import numpy as np
import pytest
from fleet_suite import Fleets
from std_msgs.msg import String

from embodied_kv.control.trajectory_executor import FRESH, PREVIOUS, SOURCES
from embodied_kv.msg import FleetAnswer, FleetRequest
from embodied_kv.nodes.fleet.messages import ANSWER, ANSWERS, REQUEST, REQUESTS
from embodied_kv.srv import (
    Ask,
    CapsuleFork,
    CapsuleRestore,
    CapsuleRollback,
    CapsuleSnapshot,
)


@pytest.fixture
def fleet(robots, tmp_path):
    return Fleets(robots, tmp_path)


@pytest.fixture
def robot(fleet):
    """It acts, and has something left to execute."""
    fleet.up(max_age=60.0, engine__time_budget=False, prompt_interval=0)
    robot = fleet.act()
    robot.asked, robot.answers = [], []
    robot.node.create_subscription(FleetAnswer, ANSWER, robot.answers.append, ANSWERS)
    robot.node.create_subscription(FleetRequest, REQUEST, robot.asked.append, REQUESTS)
    fleet.live(lambda: sources(robot).count(FRESH) >= 2)
    return robot


def sources(robot):
    return [SOURCES[chunk.source] for chunk in robot.chunks]


def capsule(fleet, robot, name):
    return fleet.node.host.session(robot.namespace).registry.get(name)


def frozen_amid(fleet, robot, name):
    """A capsule of a robot amid a chunk."""
    timing = robot.suite[0]._timing
    count = sources(robot).count(FRESH)
    fleet.live(lambda: sources(robot).count(FRESH) > count and not timing.waiting)
    answer = fleet.call(robot, CapsuleSnapshot, 'capsule/snapshot', name=name)
    assert answer.success, answer.message
    return capsule(fleet, robot, name)


def test_a_restore_goes_on_with_what_was_left_and_asks_anew(fleet, robot):
    saved = frozen_amid(fleet, robot, 'home')
    assert {'session', 'perception', 'fleet', 'action', 'scene'} <= saved.facts.keys()
    row = saved.facts['session']['rows'][0]
    assert saved.facts['perception']['instruction'] == 'reach'
    assert saved.facts['fleet']['task'] == robot.asked[-1].task
    assert row['sequence'] <= saved.facts['fleet']['next'] <= row['sequence'] + 1
    left = saved.tensors['action/values'].numpy()
    assert 1 <= len(left) <= 4 and saved.facts['action']['sequence'] <= row['sequence']

    robot.instruction.publish(String(data='put it down'))
    fleet.live(lambda: robot.asked[-1].observation.instruction == 'put it down')
    before, task = len(robot.chunks), robot.asked[-1].task
    answer = fleet.call(robot, CapsuleRestore, 'capsule/restore', name='home')
    assert answer.success and answer.depth == 'actor', answer.message
    fleet.live(lambda: robot.asked[-1].task != task)

    def goes_on():
        return any(
            SOURCES[chunk.source] == PREVIOUS
            and len(chunk.values) == left.size
            and np.allclose(chunk.values[-7:], left[-1], atol=1e-6)
            for chunk in robot.chunks[before:]
        )

    fleet.live(goes_on)
    first = next(m for m in robot.asked if m.task not in (task, saved.facts['fleet']['task']))
    assert first.round == saved.facts['fleet']['next'] and not len(first.execution)
    assert first.observation.instruction == 'reach'
    count = sources(robot).count(FRESH)
    fleet.live(lambda: sources(robot).count(FRESH) > count)
    fleet.node.host.engine.kv.check_integrity()


def test_the_row_of_the_capsule_is_the_one_that_its_round_was_made_from(fleet, robot):
    saved = frozen_amid(fleet, robot, 'home')
    row = saved.facts['session']['rows'][0]
    again = fleet.node.host.session(robot.namespace).replay('home')
    answer = next(
        m
        for m in robot.answers
        if m.verdict == FleetAnswer.ANSWERED
        and (m.task, m.round) == (saved.facts['fleet']['task'], row['sequence'])
    )
    np.testing.assert_allclose(again.values.ravel(), np.array(answer.values), atol=1e-5)


def test_a_rollback_brings_back_the_instruction_and_the_robot_goes_on(fleet, robot):
    frozen_amid(fleet, robot, 'one')
    robot.instruction.publish(String(data='put it down'))
    fleet.live(lambda: robot.asked[-1].observation.instruction == 'put it down')
    answer = fleet.call(robot, CapsuleRollback, 'capsule/rollback')
    assert answer.success and answer.name == 'one' and answer.depth == 'planner', answer.message
    fleet.live(lambda: robot.asked[-1].observation.instruction == 'reach')


def test_a_world_that_moved_on_lets_the_robot_hold_or_plan_only(fleet, robot):
    frozen_amid(fleet, robot, 'here')
    fleet.acting.remove(robot)
    fleet.live(lambda: robot.show(positions=0.6) or robot.suite[0]._joints.now().position[0] > 0.5)
    fleet.live(
        lambda: robot.show(positions=0.6) or robot.asked[-1].observation.joints.position[0] > 0.5
    )
    answer = fleet.call(robot, CapsuleRestore, 'capsule/restore', name='here')
    assert answer.success and answer.depth == 'planner' and 'joint' in answer.message


def test_streams_are_frozen_forked_and_restored_with_their_robot(fleet, robot):
    engine = fleet.node.host.engine
    decode_fits, engine.decode_fits = engine.decode_fits, lambda now: False  # streams stay
    asked = fleet.call(robot, Ask, 'language/ask', question='what is red?', max_tokens=6)
    assert asked.success, asked.message
    saved = frozen_amid(fleet, robot, 'asked')
    assert len(saved.facts['session']['streams']) == 1
    forked = fleet.call(robot, CapsuleFork, 'capsule/fork', name='asked', seeds=[1, 2])
    assert forked.success and forked.streams_each == 1 and len(forked.streams) == 2, forked.message
    back = fleet.call(robot, CapsuleRestore, 'capsule/restore', name='asked')
    assert back.success and len(back.streams) == 1, back.message
    assert 'going on: stream' in back.message and 'its task is' in back.message
    engine.decode_fits = decode_fits
    replaced = {asked.stream, *forked.streams}
    fleet.live(lambda: {t.stream for t in robot.texts if t.finished} == replaced | {*back.streams})
    reasons = {text.stream: text.reason for text in robot.texts if text.finished}
    assert {reasons[stream] for stream in replaced} == {'replaced'}
    assert reasons[back.streams[0]] in ('length', 'eos')
    engine.kv.check_integrity()


def test_what_a_fleet_robot_cannot_do_is_refused_with_the_reason(fleet, robot):
    frozen_amid(fleet, robot, 'one')
    robot.suite[0].trigger_deactivate()
    for kind, name in ((CapsuleSnapshot, 'snapshot'), (CapsuleRestore, 'restore')):
        answer = fleet.call(robot, kind, f'capsule/{name}', name='one')
        assert not answer.success and 'must be active' in answer.message
