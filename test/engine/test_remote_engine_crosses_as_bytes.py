"""What goes to an engine on another machine comes out as it went in; without Ray it says so."""

import importlib.util
import io
import math
import sys
import time
from dataclasses import asdict, replace

import numpy as np
import pytest

from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.engines import Link
from embodied_kv.model.policy import Policy
from embodied_kv.robots.reading import load
from embodied_kv.serving import remote
from embodied_kv.serving.batch import Late, serve
from embodied_kv.serving.in_time import TimedObservation
from embodied_kv.types import Guide

needs_ray = pytest.mark.skipif(
    not importlib.util.find_spec('ray'), reason='Ray is not installed: the extra `fleet`'
)
CONFIG = EngineConfig(
    robots=2, rows=6, streams=1, compressed_rows=0, time_budget=False, euler_steps=4
)
LINK = Link(0.001, 1e9, 1e9)


def timed(frame):
    """As the policy server reads it, without a deadline."""
    return TimedObservation(**vars(frame) | {'deadline': math.inf})


def later():
    return time.monotonic() + 60.0


def test_observations_cross_unchanged(observe):
    frames = [observe(n, robot=f'/r{n}') for n in (1, 2)]
    frames = [timed(frame) for frame in frames]
    hasty = replace(frames[0], deadline=time.monotonic() + 0.25, steps=3)
    frames = [hasty, frames[1]]
    found = remote.unpack_observations(remote.pack_observations(frames, time.monotonic() + 0.5))
    now = time.monotonic()
    assert found[0].deadline <= now + 0.25 < found[1].deadline <= now + 0.5
    for frame, other in zip(frames, found, strict=True):
        for image, same in zip(frame.images, other.images, strict=True):
            np.testing.assert_array_equal(image, same)
        np.testing.assert_array_equal(frame.state, other.state)
        assert (frame.instruction, frame.stamp) == (other.instruction, other.stamp)
        assert (frame.robot, frame.sequence) == (other.robot, other.sequence)
        assert frame.steps == other.steps


def test_what_the_arm_does_meanwhile_crosses_where_it_is_known(observe):
    actions = np.full((6, 7), np.nan)
    actions[:4] = np.random.default_rng(0).normal(size=(4, 7))
    guide = Guide(actions, 3, np.linspace(1, 0, 6))
    frames = [timed(replace(observe(0), guide=guide)), timed(observe(1))]
    found, other = remote.unpack_observations(remote.pack_observations(frames, later()))
    np.testing.assert_array_equal(found.guide.actions, guide.actions)
    np.testing.assert_array_equal(found.guide.weights, guide.weights)
    assert found.guide.delay == 3 and other.guide is None


def test_a_missing_view_stays_missing(observe):
    frame = timed(replace(observe(1), images=(None, observe(1).images[1])))
    (found,) = remote.unpack_observations(remote.pack_observations([frame], later()))
    assert found.images[0] is None and found.images[1] is not None


def test_chunks_and_errors_cross(make_engine, observe):
    (chunk,) = serve(make_engine(), [observe(1)], time.monotonic() + 60.0)
    results = [chunk, ValueError('its picture'), Late('no time is left')]
    found, error, late = remote.unpack_results(remote.pack_results(results), 7.0)
    np.testing.assert_array_equal(found.values, chunk.values)
    np.testing.assert_array_equal(found.updates, chunk.updates)
    assert (found.steps, found.stamp, found.deadline) == (chunk.steps, chunk.stamp, 7.0)
    assert isinstance(error, RuntimeError) and str(error) == 'its picture'
    assert isinstance(late, Late) and str(late) == 'no time is left'


def test_nothing_is_unpickled():
    buffer = io.BytesIO()
    np.savez(buffer, header=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match='allow_pickle'):
        remote.unpack_observations(buffer.getvalue())


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'ray', None)
    with pytest.raises(ValueError, match='pip install ray'):
        remote.RemoteEngine('', 'tiny', 'random', CONFIG, load('tabletop'), LINK)


def test_an_actor_serves_what_came_as_bytes(observe):
    actor = remote.EngineActor('tiny', 'random', asdict(CONFIG), load('tabletop').model_dump())
    frames = [timed(observe(n, robot=f'/r{n}')) for n in (1, 2)]
    found = remote.unpack_results(actor.serve(remote.pack_observations(frames, later())), 0.0)
    here = Engine(Policy.random(TINY, CONFIG.seed), CONFIG)
    for chunk, same in zip(found, serve(here, frames, time.monotonic() + 60.0), strict=True):
        np.testing.assert_allclose(chunk.values, same.values, atol=1e-5)


@needs_ray
def test_an_engine_in_a_cluster_serves(observe):
    engine = remote.RemoteEngine('', 'tiny', 'random', CONFIG, load('tabletop'), LINK)
    try:
        assert engine.profile.sizes == (1, 2) and engine.link is LINK
        (chunk,) = engine([timed(observe(1))], later()).result(60.0)
        assert chunk.values.shape == (TINY.chunk_size, TINY.action_dim)
    finally:
        engine.close()
        remote.ray().shutdown()
