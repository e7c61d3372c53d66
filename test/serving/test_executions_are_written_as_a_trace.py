"""Reported executions are written to the file `trace`; the file `profile` is read."""

import json

import pytest
from server_cases import libero, running_server

from benchmarks.fleet import trace_reader
from embodied_kv.fleet.profile import Profile, ProfileError, write
from embodied_kv.serving.scheduling import SchedulingConfig


def ran(round, start, end, remaining=0):
    return {'round': round, 'start': start, 'end': end, 'remaining': remaining}


def test_executions_are_written_in_their_order(tmp_path):
    path = tmp_path / 'trace.jsonl'
    chosen = {'session_id': 'arm', 'execution_horizon': 'static:3'}
    with running_server(scheduling=SchedulingConfig(trace=str(path))) as opened:
        with opened.client() as client:
            client.infer(libero() | chosen)
            client.infer(libero() | chosen | {'execution': ran(0, 0.0, 0.3, remaining=1)})
            client.infer(libero() | chosen | {'execution': ran(1, 0.3, 0.5)})
        dt = opened.robot.contract.dt
    period, (first, second) = trace_reader.read(path)
    assert period == pytest.approx(dt)
    assert (first.horizon, first.start, first.end, first.requested) == (3, 0.0, 0.3, 0)
    assert (second.round, second.requested) == (1, 2)
    assert first.task.startswith('arm/')
    assert first.inference > 0 and first.observation_bytes > 28 * 28 * 3
    assert json.loads(path.read_text().splitlines()[0])['format'] == trace_reader.FORMAT


def test_a_trace_that_cannot_be_written_is_an_error():
    with pytest.raises(OSError, match='nowhere'):
        SchedulingConfig(trace='/nowhere/trace.jsonl').trace_writer(0.1)


def test_a_profile_that_is_named_is_not_measured(tmp_path):
    found = Profile('tiny', (1, 2), (0.1, 0.11), 100)
    write(found, tmp_path / 'profile.yaml')
    config = SchedulingConfig(profile=str(tmp_path / 'profile.yaml'))
    assert config.profile_of(2, lambda: pytest.fail('it was measured')) == found
    with pytest.raises(
        ValueError, match=r'at most engine.max_batch_robots = 1 \(got 2 in .*profile.yaml\)'
    ):
        config.profile_of(1, lambda: None)
    with pytest.raises(ProfileError, match='nowhere'):
        SchedulingConfig(profile='/nowhere.yaml').profile_of(1, lambda: None)
    assert SchedulingConfig().profile_of(1, lambda: 'measured') == 'measured'
