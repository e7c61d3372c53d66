"""Work without a deadline waits for actions and prefills, and lets them run between its steps."""

import threading
import time

import pytest
from planning_cases import QUESTION, filled, said

from embodied_kv.engine.engine_thread import EngineThread

TIMEOUT = 20


@pytest.fixture
def device(make_engine):
    thread = EngineThread(make_engine(), lambda deltas: None)
    thread.start()
    yield thread
    thread.stop()


def test_actions_and_prefills_overtake_it(device, observe):
    handle = device.prefill(observe(0)).result(TIMEOUT)
    gate, order = threading.Event(), []
    device.call(gate.wait)
    background = device.background(lambda: order.append('background'))
    prefill = device.call(lambda: order.append('prefill'))
    with device.engine.kv.acquire(handle) as lease:
        action = device.denoise(lease, time.monotonic() + TIMEOUT)
        action.add_done_callback(lambda _: order.append('action'))
        gate.set()
        for future in (action, prefill, background):
            future.result(TIMEOUT)
    assert order == ['action', 'prefill', 'background']


def test_a_plan_gives_the_thread_back_after_every_layer_choice_and_token(device, tmp_path):
    with filled(tmp_path / 'a') as planning:
        wanted = planning.plan(QUESTION)
    steps = []

    def step(work):
        steps.append(work)
        return device.background(work).result(TIMEOUT)

    with filled(tmp_path / 'b', step=step) as planning:
        planning.warm()
        steps.clear()
        plan = planning.plan(QUESTION)
    assert said(plan) == said(wanted)
    layers, answer = len(plan.computed), planning.config.max_answer_tokens
    assert 2 * layers + 2 <= len(steps) <= 1 + 2 * layers + answer


def test_what_waits_is_cancelled_when_it_stops(device):
    gate = threading.Event()
    device.call(gate.wait)
    background = device.background(lambda: None)
    stopper = threading.Thread(target=device.stop)
    stopper.start()
    time.sleep(0.05)
    gate.set()
    stopper.join(TIMEOUT)
    assert background.cancelled()
