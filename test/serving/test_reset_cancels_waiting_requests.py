"""`Sessions.reset` cancels waiting requests and drops the forecast of the next one."""

import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.config import TINY
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.protocol import LastExecution
from embodied_kv.model.policy import Policy
from embodied_kv.serving.batch import TimedObservation
from embodied_kv.serving.engine_runner import EngineRunner
from embodied_kv.serving.websocket.sessions import Sessions

PATIENCE = 20.0  # s
MODEL = replace(TINY, action_dt=100.0)  # s: the next request is expected long after PATIENCE


@pytest.fixture(scope='module')
def local():
    with EngineRunner(Policy.random(MODEL), EngineConfig()) as engine:
        yield engine


@pytest.fixture
def sessions(local):
    made = Sessions(local.engine, local.device, local.profile(1), kept=1, capsule_mib=1)
    made.start()
    yield made
    made.stop()


def seen(session, execution=None):
    size = TINY.vision.image_size
    images = (np.zeros((size, size, 3), np.uint8),) * len(TINY.views)
    return TimedObservation(
        images,
        np.full(TINY.state_dim, 0.1),
        'go',
        stamp=0,
        deadline=math.inf,
        sequence=session.next,
        robot=session.name,
        execution=execution,
    )


def test_waiting_request_is_cancelled(sessions, local):
    session, free = sessions.open('arm'), threading.Event()
    local.device.call(free.wait)
    promise = sessions.infer(session, seen(session))
    reset = threading.Thread(target=sessions.reset, args=[session])
    reset.start()
    try:
        wait_until(promise.cancelled)
    finally:
        free.set()
        reset.join()
    assert session.next == 0
    assert sessions.infer(session, seen(session)).result(PATIENCE).chunk.sequence == 0


def test_no_request_is_expected(sessions):
    session = sessions.open('arm')
    sessions.infer(session, seen(session)).result(PATIENCE)
    executed = LastExecution(round=0, start=0.0, end=1.0)
    sessions.infer(session, seen(session, executed)).result(PATIENCE)
    wait_until(lambda: 0 < idle(sessions) < math.inf)
    sessions.reset(session)
    wait_until(lambda: idle(sessions) == math.inf)


def idle(sessions):
    """Return the idle time (s) of the engine; 0 while a batch is under way."""
    return sessions.engine.budget.forecast(time.monotonic())


def wait_until(happened):
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)
