"""The true state is converted to messages and back without loss; invalid messages are refused."""

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from sensor_msgs.msg import JointState

from embodied_kv.demo.nodes.truth import TrueMoments, held_message, objects_message
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import task_scene

STAMP = Time(sec=7, nanosec=5)


@pytest.fixture(scope='module')
def table():
    with Tabletop(task_scene('put'), 1_000_001) as table:
        yield table


@pytest.fixture
def moments():
    return TrueMoments(task_scene('put'))


def joints(table, stamp=STAMP):
    message = JointState(position=table.state().tolist())
    message.header.stamp = stamp
    return message


def test_the_truth_comes_back_as_it_was(table, moments):
    assert moments.add('held', held_message(table, STAMP)) is None
    assert moments.add('joints', joints(table)) is None
    moment = moments.add('objects', objects_message(table, STAMP))
    assert (moment.stamp, moment.scene) == (7_000_000_005, table.seed)
    truth = table.truth()
    assert moment.truth.held == truth.held
    np.testing.assert_allclose(moment.truth.grip, truth.grip, atol=1e-5)
    for came, was in zip(moment.truth.things, truth.things, strict=True):
        assert (came.name, came.shape, came.colour) == (was.name, was.shape, was.colour)
        np.testing.assert_allclose(came.position, was.position)
        np.testing.assert_allclose(came.size, was.size)
        assert np.cos(came.yaw - was.yaw) == pytest.approx(1)
    np.testing.assert_allclose(moment.poses, table.poses())


def test_parts_of_two_stamps_are_no_moment(table, moments):
    other = Time(sec=8)
    for _ in range(50):
        other.nanosec += 1
        assert moments.add('objects', objects_message(table, other)) is None
        assert moments.add('joints', joints(table)) is None
        assert moments.add('held', held_message(table, STAMP)) is None
    assert moments.add('objects', objects_message(table, STAMP))


def refusal(moments, table, objects):
    moments.add('joints', joints(table))
    moments.add('held', held_message(table, STAMP))
    with pytest.raises(ValueError) as refused:
        moments.add('objects', objects)
    return str(refused.value)


def test_poses_of_another_scene_are_refused(table, moments):
    objects = objects_message(table, STAMP)
    objects.poses = objects.poses[:-1]
    assert 'scene 1000001 must have 6 poses (got 5)' in refusal(moments, table, objects)


def test_poses_in_another_frame_are_refused(table, moments):
    objects = objects_message(table, STAMP)
    objects.header.frame_id = 'table'
    assert "frame of objects must be scene_SEED (got 'table')" in refusal(moments, table, objects)
