"""Three nodes share one engine, from images to commands and text."""

import numpy as np
import yaml

from embodied_kv.config import TINY
from embodied_kv.control.limits_from_contract import limits_from_contract
from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.conversions import nanoseconds
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.robots.reading import SHIPPED

SUITE = (Perception, Action, Language)


def values(chunk):
    return np.array(chunk.values).reshape(chunk.chunk_size, -1)


def fresh(chunks):
    return [chunk for chunk in chunks if chunk.source == ActionChunk.FRESH]


def test_one_frame_is_read_by_actions_and_words(robot):
    robot.up(*SUITE, prompt_interval_frames=1)
    robot.until(lambda: fresh(robot.chunks) and robot.texts)
    seen = {handle.sequence: handle for handle in robot.handles}
    for message in (fresh(robot.chunks)[0], robot.texts[0]):
        assert seen[message.sequence].header.stamp == message.header.stamp
    process_id = EngineHost._shared.engine.kv.frames.process_id
    assert {bytes(handle.process_id).hex() for handle in robot.handles} == {process_id}


def test_a_chunk_is_whole_finite_named_and_within_limits(robot):
    robot.up(*SUITE)
    robot.until(lambda: fresh(robot.chunks))
    chunk, limits = fresh(robot.chunks)[0], limits_from_contract(robot.suite[0].embodiment, '')
    assert list(chunk.joint_names) == list(robot.suite[0].embodiment.axes)
    assert (chunk.chunk_size, chunk.dt) == (TINY.chunk_size, TINY.action_dt)
    assert 4 <= chunk.steps <= 10 and chunk.prefill_ms > 0 and chunk.denoise_ms > 0
    assert chunk.deadline_met == (chunk.age <= robot.suite[0].suite.period)
    assert np.isfinite(values(chunk)).all()
    assert (values(chunk) >= limits.lower).all() and (values(chunk) <= limits.upper).all()


def test_the_motion_sets_out_from_where_the_robot_is(robot, tmp_path):
    contract = yaml.safe_load((SHIPPED / 'tabletop.yaml').read_text())
    for of in contract['limits'].values():
        of |= {'velocity': 0.2, 'acceleration': 1.0}
    (tmp_path / 'slow.yaml').write_text(yaml.safe_dump(contract))
    robot.up(*SUITE, contract=str(tmp_path / 'slow.yaml'))
    robot.until(lambda: robot.trajectories, positions=0.03)
    (first, *rest), steps = nodes_of(robot.trajectories[0])[0], 0.02
    assert np.abs(np.array(first) - 0.03).max() <= 0.2 * (0.04 + steps) and rest


def nodes_of(trajectory):
    """Return positions, velocities, and times (s) since the start of a trajectory."""
    points = trajectory.points
    after = [p.time_from_start.sec + p.time_from_start.nanosec / 1e9 for p in points]
    return [p.positions for p in points], [p.velocities for p in points], np.array(after)


def test_a_trajectory_is_a_motion_that_ends_at_rest_whenever_it_is_received(robot):
    robot.up(*SUITE)
    robot.until(lambda: robot.trajectories and robot.chunks)
    trajectory, chunk = robot.trajectories[0], robot.chunks[0]
    assert list(trajectory.joint_names) == list(chunk.joint_names)
    _, velocities, after = nodes_of(trajectory)
    assert nanoseconds(trajectory.header.stamp) == 0
    assert after[0] > 0 and (np.diff(after) > 0).all()
    assert not np.any(velocities[-1]) and np.any(velocities[0])


def test_when_frames_end_the_fallbacks_come_in_order_and_then_stop(robot, capfd):
    robot.up(*SUITE, missed_chunk_limit=6)
    robot.until(lambda: fresh(robot.chunks))
    robot.until(lambda: robot.chunks[-1].source == ActionChunk.STOP, show=False)
    sources = [chunk.source for chunk in robot.chunks]
    last_fresh = len(sources) - 1 - sources[::-1].index(ActionChunk.FRESH)
    ending = sources[last_fresh:]
    assert ending == sorted(ending)
    assert {ActionChunk.FRESH, ActionChunk.HOLD, ActionChunk.STOP} <= set(ending)
    assert all(np.isfinite(chunk.values).all() for chunk in robot.chunks)
    assert not any(chunk.deadline_met for chunk in robot.chunks[last_fresh + 1 :])
    held = values(robot.chunks[-1])
    np.testing.assert_allclose(held, [robot.trajectories[-1].points[-1].positions])
    assert 'no fresh chunk for 6 control periods' in capfd.readouterr().err


def test_a_fresh_chunk_ends_a_stop(robot):
    robot.up(*SUITE, missed_chunk_limit=1)
    robot.until(lambda: fresh(robot.chunks))
    robot.until(lambda: robot.chunks[-1].source == ActionChunk.STOP, show=False)
    robot.until(lambda: robot.chunks[-1].source == ActionChunk.FRESH)


def test_language_says_each_end_once_and_tokens_add_up(robot):
    robot.up(*SUITE, prompt_interval_frames=1)
    robot.until(lambda: sum(text.finished for text in robot.texts) >= 6)
    ends = [text.stream for text in robot.texts if text.finished]
    assert len(ends) == len(set(ends))
    assert {text.query for text in robot.texts} == {'Subtask:', 'Narrate:'}
    for stream in ends:
        counts = [text.tokens for text in robot.texts if text.stream == stream]
        assert counts == sorted(counts)
        reason = next(t.reason for t in robot.texts if t.stream == stream and t.finished)
        assert reason in ('eos', 'length', 'evicted')
