"""A malformed request is refused with the name and the value of the field."""

import pytest
from fleet_cases import ran, request

from embodied_kv.fleet.protocol import LastExecution, ProtocolError


@pytest.mark.parametrize(
    ('field', 'value', 'message'),
    [
        ('robot', '', 'robot must be 1 to 160 printable'),
        ('robot', 'a\n', 'robot must be 1 to 160 printable'),
        ('robot', 'x' * 161, 'robot must be 1 to 160 printable'),
        ('robot', 7, r"robot must be .* \(got '7'"),
        ('task', '\x00', 'task must be 1 to 160 printable'),
        ('round', -1, 'round must be a whole number from 0'),
        ('round', 1.0, r'round must be a whole number from 0 \(got 1.0'),
        ('round', True, r'round must be .* \(got True'),
        ('round', 1 << 63, 'round must be a whole number'),
        ('stamp', float('nan'), 'stamp must be finite seconds'),
        ('stamp', '0', r"stamp must be finite seconds \(got '0'"),
        ('observation_bytes', 0, r'observation_bytes must be a whole number from 1 \(got 0'),
        ('observation_bytes', 1 << 40, 'observation_bytes must be a whole number'),
        ('execution_horizon', 'static:5', 'execution_horizon must be a policy'),
        ('execution', ran(0, 0.0, 1.0), 'execution.round must be before round 0 .got 0'),
    ],
)
def test_a_malformed_request(field, value, message):
    with pytest.raises(ProtocolError, match=message):
        request(**{field: value})


@pytest.mark.parametrize(
    ('told', 'message'),
    [
        ((0, 2.0, 1.0), r'execution.end must not be before execution.start .got 1.0 and 2.0'),
        ((0, float('inf'), 1.0), r'execution.start must be finite seconds \(got inf'),
        ((0, 0.0, 1.0, -1), r'execution.remaining must be .* \(got -1'),
        ((-1, 0.0, 1.0), r'execution.round must be .* \(got -1'),
    ],
)
def test_a_malformed_execution(told, message):
    with pytest.raises(ProtocolError, match=message):
        LastExecution(*told)


def test_an_execution_that_runs_ends_after_what_remains():
    assert LastExecution.running(3, 1.0, 1.5, 10, 0.1) == ran(3, 1.0, 2.5, 10)
