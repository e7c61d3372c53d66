"""A chunk as a message and back; a message that is none is refused with the reason."""

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message

from embodied_kv.control.command import FRESH, HOLD, Command
from embodied_kv.msg import ActionChunk as ActionChunkMsg
from embodied_kv.nodes.common import conversions

NAMES, STAMP, NOW = ['shoulder', 'elbow'], 1_700_000_000_123_456_789, conversions.stamp(9)


def command(**fields):
    values = np.linspace(-1, 1, 10).reshape(5, 2)
    given = dict(
        values=values,
        dt=0.1,
        stamp=STAMP,
        first=1,
        execution_horizon=3,
        confidence=np.linspace(1, 0.2, 5).astype(np.float32),
        sequence=2**40,
        age=0.06,
        delay=2,
        latency=0.1875,
        steps=10,
        source=FRESH,
        deadline_met=True,
        prefill_ms=12.5,
        denoise_ms=30.25,
        points=values[1:3],
        velocities=np.zeros((2, 2)),
        times=np.array([0.04, 0.14]),
    )
    return Command(**given | fields)


def sent(command):
    message = conversions.chunk_message(command, NAMES, NOW)
    return deserialize_message(serialize_message(message), ActionChunkMsg)


def test_every_field_of_a_chunk_comes_back():
    told = command()
    chunk = conversions.action_chunk(sent(told), deadline=7.5)
    np.testing.assert_allclose(chunk.values, told.values, rtol=1e-7)
    np.testing.assert_array_equal(chunk.confidence, told.confidence)
    assert chunk.values.dtype == chunk.confidence.dtype == np.float32
    for name in (
        'dt',
        'stamp',
        'execution_horizon',
        'sequence',
        'steps',
        'prefill_ms',
        'denoise_ms',
    ):
        assert getattr(chunk, name) == getattr(told, name)
    assert (chunk.deadline, chunk.updates) == (7.5, None)


def test_how_late_it_took_over_is_told():
    message = sent(command())
    assert (message.delay, message.latency) == (2, 0.1875)
    assert np.isnan(sent(command(latency=np.nan)).latency)


def test_a_confidence_that_nobody_knows_stays_unknown():
    message = sent(command(confidence=np.empty(0, np.float32)))
    assert len(message.confidence) == 0
    assert conversions.action_chunk(message, deadline=0.0).confidence is None


def test_a_hold_says_its_one_action_and_no_confidence():
    held = np.ones((1, 2))
    nobody = np.empty(0, np.float32)
    message = sent(
        command(
            values=held, first=0, execution_horizon=1, confidence=nobody, source=HOLD, stamp=None
        )
    )
    assert (message.chunk_size, message.execution_horizon, len(message.confidence)) == (1, 1, 0)
    assert message.header.stamp == NOW
    with pytest.raises(conversions.Refused, match='of source 2 is no chunk, but holds or stops'):
        conversions.action_chunk(message, deadline=0.0)


@pytest.mark.parametrize(
    'field, value, reason',
    [
        ('chunk_size', 0, '10 values and 5 confidences are not 0 actions of 2 joints'),
        ('chunk_size', 6, 'are not 6 actions of 2 joints'),
        ('joint_names', ['one'], 'are not 5 actions of 1 joints'),
        ('confidence', [0.5], '10 values and 1 confidences are not 5 actions'),
        ('execution_horizon', 0, r'execution_horizon must lie from 1 to 5 \(got 0\)'),
        ('execution_horizon', 6, r'execution_horizon must lie from 1 to 5 \(got 6\)'),
        ('source', 200, 'a message of source 200 is no chunk'),
    ],
)
def test_a_message_that_is_no_chunk_says_why(field, value, reason):
    message = sent(command())
    setattr(message, field, value)
    with pytest.raises(conversions.Refused, match=reason):
        conversions.action_chunk(message, deadline=0.0)
