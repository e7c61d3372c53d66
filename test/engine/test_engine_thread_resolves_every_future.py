"""Every future is resolved, whatever work or a listener raises on the engine thread."""

import threading
import time
from concurrent.futures import Future

import pytest

from embodied_kv.engine.engine_thread import EngineThread

TIMEOUT = 20


@pytest.fixture
def start(make_engine):
    threads = []

    def make(on_deltas=lambda deltas: None):
        threads.append(EngineThread(make_engine(), on_deltas))
        threads[-1].start()
        return threads[-1]

    yield make
    for thread in threads:
        thread.stop()


def fail(*_):
    raise RuntimeError('broken')


def test_a_listener_that_fails_is_logged_and_the_thread_lives(start, observe, caplog):
    heard = threading.Event()

    def listen(deltas):
        heard.set()
        fail()

    device = start(listen)
    handle = device.prefill(observe(0)).result(TIMEOUT)
    stream = device.engine.open(handle, 'what?', max_tokens=3)
    device.wake()
    assert heard.wait(TIMEOUT)
    assert device.prefill(observe(1)).result(TIMEOUT).sequence == 1
    while not stream.reason:
        time.sleep(0.001)
    assert device.call(lambda: 1).result(TIMEOUT) == 1
    assert 'RuntimeError: broken' in caplog.text


def test_streams_whose_text_cannot_be_made_do_not_end_the_thread(start, observe, monkeypatch):
    device = start()
    handle = device.prefill(observe(0)).result(TIMEOUT)
    monkeypatch.setattr(device.engine, 'deltas', fail)
    device.engine.open(handle, 'what?', max_tokens=3)
    device.wake()
    assert device.prefill(observe(1)).result(TIMEOUT).sequence == 1
    assert device.is_alive()


@pytest.mark.parametrize('error', [RuntimeError, SystemExit, KeyboardInterrupt])
def test_work_that_raises_anything_is_its_askers(start, error):
    device = start()

    def work():
        raise error('mine')

    with pytest.raises(error, match='mine'):
        device.call(work).result(TIMEOUT)
    assert device.call(lambda: 2).result(TIMEOUT) == 2


def test_what_ends_the_thread_is_said_to_who_waits_and_to_who_comes_later(
    start, observe, monkeypatch
):
    device = start()
    gate = threading.Event()
    device.call(gate.wait)
    waiting = [device.background(lambda: 3), device.background(lambda: 4)]
    cancelled = device.background(lambda: 5)
    assert cancelled.cancel()
    monkeypatch.setattr(device, '_turn', fail)
    gate.set()
    for future in waiting:
        with pytest.raises(RuntimeError, match='engine thread ended.*broken'):
            future.result(TIMEOUT)
    device.join(TIMEOUT)
    for later in (
        device.call(lambda: 6),
        device.background(lambda: 7),
        device.prefill(observe(0)),
    ):
        with pytest.raises(RuntimeError, match='engine thread ended.*broken'):
            later.result(TIMEOUT)


def test_a_callback_that_raises_what_no_future_catches_ends_it_aloud(start):
    device = start()
    gate = threading.Event()
    first = device.call(gate.wait)
    waiting: Future = device.call(lambda: 8)

    def callback(_):
        raise SystemExit('callback')

    first.add_done_callback(callback)
    gate.set()
    with pytest.raises(RuntimeError, match='engine thread ended.*callback'):
        waiting.result(TIMEOUT)


def test_stopping_one_that_never_started_cancels_what_waits(make_engine):
    device = EngineThread(make_engine(), fail)
    waiting = device.call(lambda: 1)
    device.stop()
    assert waiting.cancelled() and device.call(lambda: 1).cancelled()
