"""A request that exists is well-formed; what is not is refused with the field and its value."""

import pytest
from fleet_cases import ran, request

from embodied_kv.fleet.protocol import LastExecution, ProtocolError


@pytest.mark.parametrize(
    ('field', 'value', 'message'),
    [
        ('robot', '', 'robot must be 1 to 128 printable'),
        ('robot', 'a\n', 'robot is'),
        ('robot', 'x' * 129, 'robot is'),
        ('robot', 7, "robot is '7'"),
        ('task', '\x00', 'task is'),
        ('round', -1, 'round must be a whole number from 0'),
        ('round', 1.0, 'round is 1.0'),
        ('round', True, 'round is True'),
        ('round', 1 << 63, 'round is'),
        ('stamp', float('nan'), 'stamp must be finite seconds'),
        ('stamp', '0', "stamp is '0'"),
        ('observation_bytes', 0, 'observation_bytes is 0'),
        ('observation_bytes', 1 << 40, 'observation_bytes is'),
        ('execution_horizon', 'static:5', 'execution_horizon must be a policy'),
        ('execution', ran(0, 0.0, 1.0), 'execution.round 0 is not before round 0'),
    ],
)
def test_a_malformed_request(field, value, message):
    with pytest.raises(ProtocolError, match=message):
        request(**{field: value})


@pytest.mark.parametrize(
    ('told', 'message'),
    [
        ((0, 2.0, 1.0), r'execution.end 1.0 is before its start 2.0'),
        ((0, float('inf'), 1.0), 'execution.start is inf'),
        ((0, 0.0, 1.0, -1), 'execution.remaining is -1'),
        ((-1, 0.0, 1.0), 'execution.round is -1'),
    ],
)
def test_a_malformed_execution(told, message):
    with pytest.raises(ProtocolError, match=message):
        LastExecution(*told)


def test_an_execution_that_runs_ends_after_what_remains():
    assert LastExecution.running(3, 1.0, 1.5, 10, 0.1) == ran(3, 1.0, 2.5, 10)
