"""A capsule has the frozen KV, although the device copies late and a host thread reads it."""

from concurrent.futures import Future

import numpy as np
import pytest
import torch

from benchmarks.common.hostile_device import HostileDevice
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities
from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.runtime.stream import Stream
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.robot_session import RobotSession

TIMEOUT = 30


def on_a_stream():
    """Return a function that runs work on its own stream without waiting for the device."""
    own = Stream.on('cpu')

    def call(work):
        future = Future()
        with own.use():
            future.set_result(work())
        return future

    return call


@pytest.mark.parametrize('tier', [Tier.DEVICE, Tier.HOST, Tier.DISK])
def test_a_capsule_holds_the_frozen_kv(make_engine, observe, tmp_path, tier):
    with HostileDevice() as device:
        engine = make_engine()
        registry = Registry(fingerprint(engine), TierCapacities(), Disk(tmp_path))
        session = RobotSession(EnginePart(engine), registry, on_a_stream())
        (handle,) = engine.prefill([observe(1)])
        engine.open(handle, 'what is it?', max_tokens=4)
        engine.decode()
        queued = device.queued
        session.snapshot('c', None, tier)
        assert device.queued > queued, 'the copies were not late'
        found = registry.get('c').tensors
        for kind, wanted in zip('kv', engine.kv.prefixes.row(handle.row), strict=True):
            assert torch.equal(found[f'session/row/0/{kind}'], wanted)
        assert all(torch.isfinite(tensor).all() for tensor in found.values())


def test_a_restored_row_acts_as_the_frozen_one(make_engine, observe):
    with HostileDevice():
        engine = make_engine()
        device = EngineThread(engine, lambda deltas: None)
        device.start()
        try:
            session = RobotSession(EnginePart(engine), Registry(fingerprint(engine)), device.call)
            handle = device.prefill(observe(1)).result(TIMEOUT)
            with engine.kv.acquire(handle) as lease:
                wanted = device.denoise(lease, np.inf).result(TIMEOUT)
            session.snapshot('c')
            for n in range(2, 5):
                device.prefill(observe(n)).result(TIMEOUT)
            np.testing.assert_array_equal(session.replay('c').values, wanted.values)
        finally:
            device.stop()
