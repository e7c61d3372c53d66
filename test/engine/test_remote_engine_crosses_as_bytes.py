"""Data to and from a remote engine arrives unchanged; without Ray the error names the remedy."""

import importlib.util
import math
import pickle
import sys
import time
from dataclasses import asdict, replace

import msgpack
import numpy as np
import pytest

from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.engines import Link
from embodied_kv.model.policy import Policy
from embodied_kv.robots.reading import load
from embodied_kv.serving import ray_engine
from embodied_kv.serving.batch import LateError, TimedObservation, serve
from embodied_kv.serving.websocket.codec import CodecError
from embodied_kv.types import Guide

needs_ray = pytest.mark.skipif(
    not importlib.util.find_spec('ray'), reason='Ray is not installed: the extra `fleet`'
)
CONFIG = EngineConfig(
    max_batch_robots=2, rows=6, streams=1, compressed_rows=0, time_budget=False, euler_steps=4
)
LINK = Link(0.001, 1e9, 1e9)


def timed(frame):
    """Return the frame as the policy server reads it, without a deadline."""
    return TimedObservation(**vars(frame) | {'deadline': math.inf})


def later():
    return time.monotonic() + 60.0


def test_observations_cross_unchanged(observe):
    frames = [observe(n, robot=f'/r{n}') for n in (1, 2)]
    frames = [timed(frame) for frame in frames]
    hasty = replace(frames[0], deadline=time.monotonic() + 0.25, steps=3)
    frames = [hasty, frames[1]]
    found = ray_engine.unpack_observations(
        ray_engine.pack_observations(frames, time.monotonic() + 0.5)
    )
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
    found, other = ray_engine.unpack_observations(ray_engine.pack_observations(frames, later()))
    np.testing.assert_array_equal(found.guide.actions, guide.actions)
    np.testing.assert_array_equal(found.guide.weights, guide.weights)
    assert found.guide.delay == 3 and other.guide is None


def test_a_missing_view_stays_missing(observe):
    frame = timed(replace(observe(1), images=(None, observe(1).images[1])))
    (found,) = ray_engine.unpack_observations(ray_engine.pack_observations([frame], later()))
    assert found.images[0] is None and found.images[1] is not None


def test_chunks_and_errors_cross(make_engine, observe):
    (chunk,) = serve(make_engine(), [observe(1)], time.monotonic() + 60.0)
    results = [chunk, ValueError('its picture'), LateError('no time is left')]
    found, error, late = ray_engine.unpack_results(ray_engine.pack_results(results), 7.0)
    np.testing.assert_array_equal(found.values, chunk.values)
    np.testing.assert_array_equal(found.updates, chunk.updates)
    assert (found.steps, found.stamp, found.deadline) == (chunk.steps, chunk.stamp, 7.0)
    assert isinstance(error, RuntimeError) and str(error) == 'its picture'
    assert isinstance(late, LateError) and str(late) == 'no time is left'


def test_pickled_objects_are_refused(observe):
    image = pickle.dumps(observe(1).images[0])
    for data in (image, msgpack.packb([{'state': msgpack.ExtType(1, image)}])):
        with pytest.raises(CodecError, match='must be msgpack'):
            ray_engine.unpack_observations(data)


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'ray', None)
    with pytest.raises(ValueError, match='pip install ray'):
        ray_engine.RemoteEngine('', 'tiny', 'random', CONFIG, load('tabletop'), LINK)


def test_an_actor_serves_what_came_as_bytes(observe):
    actor = ray_engine.EngineActor('tiny', 'random', asdict(CONFIG), load('tabletop').model_dump())
    frames = [timed(observe(n, robot=f'/r{n}')) for n in (1, 2)]
    found = ray_engine.unpack_results(
        actor.serve(ray_engine.pack_observations(frames, later())), 0.0
    )
    here = Engine(Policy.random(TINY, CONFIG.seed), CONFIG)
    for chunk, same in zip(found, serve(here, frames, time.monotonic() + 60.0), strict=True):
        np.testing.assert_allclose(chunk.values, same.values, atol=1e-5)


@needs_ray
def test_an_engine_in_a_cluster_serves(observe):
    engine = ray_engine.RemoteEngine('', 'tiny', 'random', CONFIG, load('tabletop'), LINK)
    try:
        assert engine.profile.sizes == (1, 2) and engine.link is LINK
        (chunk,) = engine([timed(observe(1))], later()).result(60.0)
        assert chunk.values.shape == (TINY.chunk_size, TINY.action_dim)
    finally:
        engine.close()
        ray_engine.ray().shutdown()
