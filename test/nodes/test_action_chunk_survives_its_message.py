"""A command is converted to a message without loss."""

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


def test_message_has_every_field_of_a_command():
    given = command()
    message = sent(given)
    assert (message.chunk_size, list(message.joint_names)) == (5, NAMES)
    np.testing.assert_array_equal(np.reshape(message.values, (5, 2)), given.values)
    np.testing.assert_array_equal(message.confidence, given.confidence)
    assert conversions.nanoseconds(message.header.stamp) == given.stamp
    names = 'dt first execution_horizon sequence age delay latency steps'.split()
    for name in (*names, 'deadline_met', 'prefill_ms', 'denoise_ms'):
        assert getattr(message, name) == pytest.approx(getattr(given, name)), name


def test_how_late_it_took_over_is_told():
    message = sent(command())
    assert (message.delay, message.latency) == (2, 0.1875)
    assert np.isnan(sent(command(latency=np.nan)).latency)


def test_a_confidence_that_nobody_knows_stays_unknown():
    assert len(sent(command(confidence=np.empty(0, np.float32))).confidence) == 0


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
