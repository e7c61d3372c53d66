"""An additional engine in a Ray cluster serves the requests that it answers sooner."""

import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import pytest
from server_cases import ENGINE, busy, running_server, tabletop, until

from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.engines import Link
from embodied_kv.fleet.profile import Profile
from embodied_kv.robots.reading import load
from embodied_kv.serving.__main__ import main
from embodied_kv.serving.batch import TimedObservation
from embodied_kv.serving.ray_engine import (
    CloudConfig,
    EngineActor,
    pack_observations,
    unpack_observations,
    unpack_results,
)


class PlayedEngine:
    """A RemoteEngine without Ray: the actor runs on a thread of this process."""

    link, profile = Link(0.001, 1e9, 1e9), Profile('tiny', (1, 2, 4), (0.001,) * 3, 100)

    def __init__(self):
        config = asdict(EngineConfig(**ENGINE | {'seed': 1, 'time_budget': True}))
        self._actor = EngineActor('tiny', 'random', config, load('tabletop').model_dump())
        self._thread, self.served = ThreadPoolExecutor(1), []

    def __call__(self, frames, deadline):
        self.served += [frame.robot for frame in frames]
        packed = pack_observations(frames, deadline)
        return self._thread.submit(lambda: unpack_results(self._actor.serve(packed), deadline))


@pytest.fixture
def cloud():
    engine = PlayedEngine()
    yield engine
    engine._thread.shutdown()


def session(name):
    return {'session_id': name}


def in_the_cloud(opened, cloud, request, wait=None):
    """Return the reply to a request that is sent while the local engine is busy."""
    waiting = opened.client()
    with waiting, ThreadPoolExecutor(1) as other:
        before = opened.sessions.values()['batches']
        with busy(opened):
            first = other.submit(waiting.infer, tabletop(9) | session('first'))
            until(lambda: opened.sessions.values()['batches'] > before)
            served = len(cloud.served)
            reply = opened.asks.infer(request)
            assert len(cloud.served) == served + 1
        first.result()
    return reply


@pytest.fixture
def opened(cloud):
    engine = {'seed': 1, 'time_budget': True}
    with running_server('tabletop', engine=engine, cloud=cloud) as found, found.client() as client:
        found.asks = client
        yield found


def test_a_request_that_would_wait_goes_to_the_cloud_and_gets_the_same_chunk(opened, cloud):
    here = opened.client()
    request = tabletop(1) | session('second')
    reply = in_the_cloud(opened, cloud, request)
    assert cloud.served == ['second']
    with running_server('tabletop', engine={'seed': 1}) as alone, alone.client() as client:
        same = client.infer(request)
    np.testing.assert_allclose(reply['actions'], same['actions'], atol=1e-5)
    here.__exit__()


def test_question_after_cloud_service_has_no_older_frame(opened, cloud):
    question = {'endpoint': 'ask', 'question': 'Where is it?', 'max_tokens': 2}
    opened.asks.infer(tabletop(1) | session('second'))
    assert 'text' in opened.asks.infer(question | session('second'))
    in_the_cloud(opened, cloud, tabletop(2) | session('second'))
    until(lambda: opened.sessions._rows.newest('second') is None)
    reply = opened.asks.infer(question | session('second') | {'request_id': 'q'})
    assert 'must be about a frame' in str(reply)
    opened.asks.infer(tabletop(3) | session('second'))
    assert 'text' in opened.asks.infer(question | session('second'))
    opened.engine.kv.check_integrity()


def test_no_chunk_of_the_cloud_is_later_than_its_deadline(opened, cloud):
    request = tabletop(1) | session('second') | {'deadline_ms': 1e-3, 'request_id': 'late'}
    reply = in_the_cloud(opened, cloud, request)
    assert 'actions' not in reply and 'deadline' in str(reply)


def test_without_ray_the_command_states_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'ray', None)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *('--contract', 'tabletop', '--preset', 'tiny', '--checkpoint', 'random'),
                *('--cloud_address', 'local', '--port', '0'),
            ]
        )
    assert ended.value.code == 2 and 'pip install ray' in capsys.readouterr().err


def test_the_network_is_part_of_a_deadline():
    image, end = np.zeros((8, 8, 3), np.uint8), time.monotonic() + 1.0
    frame = TimedObservation((image,), np.zeros(7, np.float32), '', 0, end, 1)
    left = [
        unpack_observations(pack_observations([frame], math.inf, way))[0].deadline
        - time.monotonic()
        for way in (0.0, 0.4)
    ]
    assert left[0] - left[1] == pytest.approx(0.4, abs=0.2) and left[1] < 0.65


def test_a_cloud_without_a_preset_is_refused():
    with pytest.raises(ValueError, match='preset must be the name'):
        CloudConfig(cloud_address='local').open('', '', EngineConfig(), load('tabletop'))
