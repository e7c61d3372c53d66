"""The depth of a restore decides what the action node executes.

It executes the leftover chunk, its present chunk, or a hold.
"""

import numpy as np
import pytest
import torch
from capsule_suite import begin, silent
from rclpy.parameter import Parameter

from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.srv import CapsuleDrop, CapsuleRestore, CapsuleSnapshot


@pytest.fixture
def suite(robot, tmp_path):
    """Start a suite and store a capsule with a leftover chunk, which may be up to 1 h old."""
    *nodes, capsules = begin(robot, tmp_path, missed_chunk_limit=1000)
    capsules.set_parameters(
        [
            Parameter('max_action_resume_age', value=3600.0),
            Parameter('max_planner_resume_age', value=3600.0),
        ]
    )
    silent()
    while not registry(robot).entries() or kept(robot) is None:  # no leftover between two chunks
        robot.call(CapsuleDrop, 'capsule/drop', name='home')
        robot.chunks.clear()
        robot.until(lambda: robot.chunks and robot.chunks[-1].source == ActionChunk.FRESH)
        robot.call(CapsuleSnapshot, 'capsule/snapshot', name='home')
    return nodes


@pytest.fixture
def no_chunks(monkeypatch):
    """Return a function after which no chunk is denoised, although frames arrive."""

    def stop():
        monkeypatch.setattr(EngineHost._shared.engine, 'denoise', lambda *_: [])

    return stop


def restore(robot):
    robot.chunks.clear()
    response = robot.call(CapsuleRestore, 'capsule/restore', name='home')
    assert response.success, response.message
    return response


def registry(robot):
    return EngineHost._shared.session(robot.namespace).registry


def kept(robot):
    """Return the leftover chunk in the capsule, [n, joints], and its facts; None without one."""
    capsule = registry(robot).get('home')
    values = capsule.tensors.get('action/values')
    return None if values is None else (values.numpy(), capsule.facts['action'])


def test_at_depth_actor_the_leftover_goes_on_as_a_previous_chunk(robot, suite, no_chunks):
    values, facts = kept(robot)
    no_chunks()
    robot.until(lambda: robot.chunks[-1].source == ActionChunk.HOLD)
    moment = robot.now()
    response = restore(robot)
    assert response.depth == 'actor', response.message
    assert response.message.endswith('the actor goes on; no stream goes on')
    robot.until(lambda: any(c.source == ActionChunk.PREVIOUS for c in robot.chunks))
    chunk = next(c for c in robot.chunks if c.source == ActionChunk.PREVIOUS)
    np.testing.assert_array_equal(np.reshape(chunk.values, values.shape)[-1], values[-1])
    assert (chunk.first, chunk.sequence, chunk.chunk_size) == (0, facts['sequence'], len(values))
    assert chunk.header.stamp.sec * 10**9 + chunk.header.stamp.nanosec >= moment
    assert chunk.age > len(values) * chunk.dt  # the age counts from its observation
    assert not chunk.deadline_met
    robot.until(lambda: robot.chunks[-1].source == ActionChunk.HOLD)  # until the leftover ends


def test_a_fresh_chunk_takes_over_from_the_leftover(robot, suite):
    assert restore(robot).depth == 'actor'
    robot.until(lambda: any(c.source == ActionChunk.FRESH for c in robot.chunks))
    sources = [chunk.source for chunk in robot.chunks]
    assert set(sources) <= {ActionChunk.FRESH, ActionChunk.PREVIOUS, ActionChunk.HOLD}
    newest = robot.chunks[-1]
    assert newest.sequence > kept(robot)[1]['sequence'] and newest.age < 1.0


def test_at_depth_planner_the_chunk_in_force_goes_on(robot, suite, no_chunks):
    leftover = kept(robot)[1]['sequence']
    robot.until(lambda: robot.chunks[-1].sequence > leftover, positions=0.5)
    no_chunks()
    robot.more(robot.handles, 2, positions=0.5)
    response = restore(robot)
    assert response.depth == 'planner'
    assert 'has moved 0.4, more than 0.05' in response.message
    robot.spin(0.5)
    assert all(chunk.sequence > leftover for chunk in robot.chunks)


def test_at_depth_hold_the_robot_stays_where_it_is_until_a_fresh_chunk(robot, suite, no_chunks):
    no_chunks()
    perception = suite[0]
    perception.trigger_deactivate()
    response = restore(robot)
    assert (response.depth, list(response.streams)) == ('hold', [])
    assert response.message.startswith('there is no recent observation: the robot holds')
    robot.until(lambda: any(c.source == ActionChunk.HOLD for c in robot.chunks), show=False)
    held = next(c for c in robot.chunks if c.source == ActionChunk.HOLD)
    assert held.chunk_size == 1
    robot.spin(0.5)
    assert all(c.values == held.values for c in robot.chunks if c.source == ActionChunk.HOLD)


def test_the_actor_of_a_damaged_capsule_is_refused(robot, suite):
    with torch.inference_mode():
        registry(robot).get('home').tensors['action/values'][0, 0] = float('nan')
    response = robot.call(CapsuleRestore, 'capsule/restore', name='home')
    assert not response.success
    assert response.message == 'leftover actions must be finite, and at least one'
