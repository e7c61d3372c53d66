"""An operator lists the memory rows of a robot, looks at them, and removes them."""

import cv2
import numpy as np
import pytest

from embodied_kv.errors import ErrorCode
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.perception import Perception
from embodied_kv.srv import KvForget, KvMemory, KvStats

SUITE = Perception, Action


@pytest.fixture
def remembering(robot):
    """Return a robot with two memory rows, the last that it gets."""
    kept = dict(rows=2, interval=0.1, novelty=0.0)  # its images never change
    perception, _ = robot.up(*SUITE, **{f'engine__memory_{n}': value for n, value in kept.items()})
    memory, robot.name = EngineHost._shared.engine.memory, perception.robot
    robot.until(lambda: len(memory.rows(perception.robot)) == 2, timeout=60.0)
    memory.keep = lambda *_: False
    return robot


def test_rows_are_listed_the_newest_first(remembering):
    response = remembering.call(KvMemory, 'kv/memory')
    assert response.success
    assert (
        response.message
        == '2 memory rows, at most 2 of the present instruction and 2 of earlier ones'
    )
    newest, oldest = response.rows
    assert newest.sequence > oldest.sequence
    assert (newest.stamp.sec, newest.stamp.nanosec) > (oldest.stamp.sec, oldest.stamp.nanosec)
    known = EngineHost._shared.engine.memory.rows(remembering.name)
    assert [row.bytes for row in response.rows] == [row.bytes for row in known]
    assert all(row.tokens > 0 and not row.pictures for row in response.rows)


def test_pictures_are_returned_on_request(remembering):
    response = remembering.call(KvMemory, 'kv/memory', pictures=True)
    shown = EngineHost._shared.engine.memory.rows(remembering.name)[0].pictures
    assert len(response.rows[0].pictures) == len(shown) > 0
    for message, picture in zip(response.rows[0].pictures, shown, strict=True):
        pixels = cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR)
        assert max(pixels.shape) <= 96 and np.array_equal(pixels[..., ::-1], picture)


def test_one_row_or_all_are_removed(remembering):
    newest, oldest = remembering.call(KvMemory, 'kv/memory').rows
    gone = remembering.call(KvForget, 'kv/forget', sequences=[oldest.sequence])
    assert gone.success and gone.removed == 1
    (left,) = remembering.call(KvMemory, 'kv/memory').rows
    assert left.sequence == newest.sequence
    assert remembering.call(KvForget, 'kv/forget').removed == 1
    assert EngineHost._shared.engine.memory.bytes_used == 0
    assert remembering.call(KvForget, 'kv/forget').removed == 0


def test_an_unknown_row_is_refused_and_nothing_is_removed(remembering):
    newest = remembering.call(KvMemory, 'kv/memory').rows[0]
    wrong = remembering.call(KvForget, 'kv/forget', sequences=[newest.sequence, 10**9])
    assert (wrong.success, wrong.error_code) == (False, ErrorCode.NOT_FOUND)
    assert wrong.message == 'no memory row of frame 1000000000; list them with kv/memory'
    assert len(remembering.call(KvMemory, 'kv/memory').rows) == 2


def test_a_robot_without_memory_rows_lists_none(robot):
    robot.up(*SUITE)
    robot.until(lambda: robot.handles)
    response = robot.call(KvMemory, 'kv/memory')
    assert response.success and not response.rows
    assert robot.call(KvStats, 'kv/stats').success
