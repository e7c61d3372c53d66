"""Chunks of a fleet go on from what each robot told it does meanwhile, each with its own d."""

import threading

import numpy as np
import pytest
from fleet_suite import JOINTS, Fleets
from rclpy.serialization import deserialize_message, serialize_message

from embodied_kv.config import TINY
from embodied_kv.msg import FleetAnswer, FleetRequest
from embodied_kv.nodes.fleet import messages
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.types import Guide

CHUNK, JOINT_COUNT = TINY.chunk_size, len(JOINTS)
ACTIONS = Embodiment.load('tabletop').actions


def guide(delay, known=4, value=0.2):
    """What runs for so many actions more, in SI."""
    actions = np.full((CHUNK, JOINT_COUNT), np.nan)
    actions[:known] = value + 0.01 * np.arange(known * JOINT_COUNT).reshape(known, -1)
    return Guide(actions, delay, np.linspace(1, 0, CHUNK))


def values(answer):
    return np.array(answer.values).reshape(-1, JOINT_COUNT)


def sent(message):
    return deserialize_message(serialize_message(message), FleetRequest)


@pytest.fixture(scope='module')
def fleet(robots_of_module, tmp_path_factory):
    fleet = Fleets(robots_of_module, tmp_path_factory.mktemp('fleet'))
    fleet.up(engine__rtc='trained', scheduler='fifo')
    return fleet, fleet.join(seed=1), fleet.join(seed=2)


def test_what_a_robot_does_meanwhile_survives_its_message(fleet):
    told = guide(delay=3)
    message = sent(fleet[1].request(guide=told))
    found = messages.guide(message, TINY, ACTIONS)
    np.testing.assert_array_equal(found.actions, ACTIONS.policy(told.actions))
    np.testing.assert_allclose(found.weights, told.weights, atol=1e-7)
    assert found.delay == 3
    assert messages.guide(sent(fleet[1].request()), TINY, ACTIONS) is None


def test_its_bytes_cross_the_network_too(fleet):
    plain, guided = (sent(fleet[1].request(guide=g)) for g in (None, guide(delay=3)))
    weigh = [messages.request(m, '/r', 'whole').observation_bytes for m in (plain, guided)]
    assert weigh[1] - weigh[0] == 8 * CHUNK * (JOINT_COUNT + 1)


def test_each_of_a_batch_goes_on_from_its_own_by_its_own_delay(fleet):
    fleet, a, b = fleet
    gate, batches = threading.Event(), fleet.counts['batches']
    fleet.node.host.device.call(gate.wait)  # the engine is busy until both wait
    first = fleet.join(seed=3)
    first.ask()
    fleet.until(lambda: fleet.counts['batches'] == batches + 1)
    told = {a: guide(delay=1, value=0.3), b: guide(delay=3, value=-0.3)}
    for robot, guided in told.items():
        robot.ask(task='batch', guide=guided)
    fleet.until(lambda: len(fleet.node._server.dispatcher.queue) == 2)
    gate.set()
    fleet.until(lambda: a.got('batch') and b.got('batch'))
    assert fleet.counts['batches'] == batches + 2  # the two in one
    for robot, guided in told.items():
        found = values(robot.got('batch')[0])
        same = np.abs(found - guided.actions).max(axis=1) < 1e-4
        assert same[: guided.delay].all() and not same[guided.delay :].any()


@pytest.mark.parametrize(
    'change, reason',
    [
        (dict(leftover=[0.0] * 5), f'has 5 values: {CHUNK} actions of {JOINT_COUNT} joints'),
        (dict(leftover=[0.0] * (CHUNK - 1) * JOINT_COUNT), 'the leftover has'),
        (dict(leftover=[np.inf] * CHUNK * JOINT_COUNT), 'the leftover is infinite'),
        (dict(leftover=[1e30] * CHUNK * JOINT_COUNT), 'actions that no arm does'),
        (dict(joint_names=[]), 'moves other joints'),
        (dict(joint_names=[f'left_{name}' for name in JOINTS]), 'moves other joints: left_'),
        (dict(weights=[]), 'weights'),
        (dict(weights=[1.0] * (CHUNK + 1)), 'weights'),
        (dict(weights=[np.nan] * CHUNK), 'weights of a guide are from 0 to 1'),
        (dict(weights=[np.inf] * CHUNK), 'weights of a guide are from 0 to 1'),
        (dict(weights=[-0.1] * CHUNK), 'weights of a guide are from 0 to 1'),
        (dict(delay=CHUNK), f'delay must be from 0 to {CHUNK - 1} actions'),
        (dict(delay=2**32 - 1), f'delay must be from 0 to {CHUNK - 1} actions'),
    ],
)
def test_a_bad_guide_is_refused_and_reaches_no_batch(fleet, change, reason):
    fleet, bad, good = fleet
    bad.answers.clear()
    served, round = fleet.counts['served'], len(good.got())
    message = bad.request(task='bad', guide=guide(delay=2))
    for name, value in change.items():
        setattr(message, name, value)
    bad.requests.publish(message)
    fleet.until(lambda: bad.answers)
    assert bad.answers[0].verdict == FleetAnswer.REFUSED
    assert reason in bad.answers[0].message
    good.ask(round, guide=guide(delay=2))
    fleet.until(lambda: round in good.got())
    assert fleet.counts['served'] == served + 1
    assert fleet.counts['engine errors'] == 0
    np.testing.assert_allclose(values(good.got()[round])[:2], guide(2).actions[:2], atol=1e-4)
