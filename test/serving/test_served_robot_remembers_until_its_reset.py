"""A policy server keeps memory rows of each session, in its capsules, until reset or end."""

import math
import time

import numpy as np
import pytest

from embodied_kv.config import TINY
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from embodied_kv.serving.batch import TimedObservation
from embodied_kv.serving.engine_runner import EngineRunner
from embodied_kv.serving.websocket.sessions import Sessions

PATIENCE = 20.0  # s


@pytest.fixture(scope='module')
def local():
    config = EngineConfig(memory_rows=2, memory_keep_ratio=1.0, memory_interval=0.1)
    with EngineRunner(Policy.random(TINY), config) as engine:
        yield engine


@pytest.fixture
def sessions(local):
    made = Sessions(local.engine, local.device, local.profile(1), kept=0, capsule_mib=1)
    made.start()
    yield made
    made.stop()


def serve(sessions, session, number, instruction='go'):
    """Serve a frame of a session, and return the actions."""
    size = TINY.vision.image_size
    images = (np.full((size, size, 3), 40 * number, np.uint8),) * len(TINY.views)
    frame = TimedObservation(
        images,
        np.full(TINY.state_dim, 0.1),
        instruction,
        stamp=number * 1_000_000_000,
        deadline=math.inf,
        sequence=session.next,
        robot=session.name,
    )
    return sessions.infer(session, frame).result(PATIENCE).chunk.values


def numbers(local, session):
    """Return the frames in the memory of a session, the newest first."""
    rows = local.engine.memory.rows(session.name)
    return [row.handle.stamp // 1_000_000_000 for row in rows]


def wait_until(happened):
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_each_session_has_its_own_memory(sessions, local):
    one, other = sessions.open('one'), sessions.open('other')
    for number in (1, 2, 3):
        serve(sessions, one, number)
    serve(sessions, other, 4)
    assert (numbers(local, one), numbers(local, other)) == ([2, 1], [])


def test_a_reset_forgets_the_frames_before_it(sessions, local):
    session = sessions.open('arm')
    for number in (1, 2):
        serve(sessions, session, number)
    assert numbers(local, session) == [1]
    sessions.reset(session)
    serve(sessions, session, 3)
    assert numbers(local, session) == []
    serve(sessions, session, 4)
    assert numbers(local, session) == [3]


def test_nothing_is_remembered_of_a_session_that_has_ended(sessions, local):
    session = sessions.open('arm')
    for number in (1, 2):
        serve(sessions, session, number)
    sessions.close(session)
    wait_until(lambda: not numbers(local, session))
    assert local.engine.memory.bytes_used == 0


def test_a_capsule_of_a_session_has_its_memory(sessions, local):
    session = sessions.open('arm')
    for number in (1, 2, 3):
        serve(sessions, session, number)
    session.snapshot('here')
    sessions.reset(session)
    serve(sessions, session, 4)
    assert numbers(local, session) == []
    session.restore('here')
    assert numbers(local, session) == [3, 1]
