"""The robots of a late batch are refused with the reason, and the engine remains in service."""

from concurrent.futures import Future

import pytest

from embodied_kv.control.execution_horizon import Static
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Request, Verdict
from embodied_kv.fleet.schedulers import Fifo
from embodied_kv.serving.batch import serve
from embodied_kv.serving.fleet_server import FleetServer


def promise(work):
    """Run the work, and return a future of its result or error, as the engine thread does."""
    promised = Future()
    try:
        promised.set_result(work())
    except Exception as error:
        promised.set_exception(error)
    return promised


@pytest.fixture
def fleet(make_engine, observe):
    """Return a server, its real engine, and a function that requests a round for a robot.

    The function returns the last receipt.
    """
    engine, heard = make_engine(max_batch_robots=2), []
    profile = Profile('p', (1, 2), (0.01, 0.011), 100)
    server = FleetServer(
        Dispatcher(Fifo(), [EngineState('here', profile)]),
        {'here': lambda frames, deadline: promise(lambda: serve(engine, frames, deadline))},
        lambda *told: heard.append(told[3]),
    )

    def ask(round):
        server.submit(Request('/r', 't', round, 0.0, Static(3), 10), observe(round, robot='/r'))
        server.step()  # queued, and sent
        server.step()  # answered
        return heard[-1]

    return server, engine, ask


def test_the_robot_hears_why_and_the_next_round_is_served(fleet, monkeypatch):
    server, engine, ask = fleet
    monkeypatch.setattr(engine, 'denoise', lambda *_: [])
    late = ask(0)
    assert late.verdict is Verdict.REFUSED and 'no time was left' in late.message
    monkeypatch.undo()
    assert ask(1).verdict is Verdict.ANSWERED
    assert server.counts['engine errors'] == 0


def test_an_engine_that_fails_is_not_asked_at_once(fleet, monkeypatch):
    server, engine, ask = fleet
    monkeypatch.setattr(engine, 'denoise', lambda *_: 1 / 0)
    assert ask(0).verdict is Verdict.QUEUED
    assert server.counts['engine errors'] == 1
