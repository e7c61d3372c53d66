"""One thread computes: actions before prefills before language.

An error is returned to the caller that submitted the work, and the thread continues.
"""

import threading
import time
from concurrent.futures import wait

import pytest

from embodied_kv.engine.engine_thread import EngineThread

TIMEOUT = 120


@pytest.fixture
def start(make_engine):
    threads = []

    def make(**config):
        said = []
        thread = EngineThread(make_engine(**config), said.extend)
        threads.append(thread)
        thread.start()
        return thread, said

    yield make
    for thread in threads:
        thread.stop()


def wait_for(condition):
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, 'it did not happen'
        time.sleep(0.005)


def test_actions_overtake_prefills_that_wait(start, observe):
    device, _ = start()
    handle = device.prefill(observe(0)).result(TIMEOUT)
    gate, order = threading.Event(), []
    device.call(gate.wait)
    prefill = device.prefill(observe(1))
    prefill.add_done_callback(lambda _: order.append('prefill'))
    with device.engine.kv.acquire(handle) as lease:
        action = device.denoise(lease, time.monotonic() + TIMEOUT)
        action.add_done_callback(lambda _: order.append('action'))
        gate.set()
        assert action.result(TIMEOUT).sequence == 0
        prefill.result(TIMEOUT)
    assert order == ['action', 'prefill']


def test_a_frame_that_waits_lets_the_action_of_the_one_before_it_go_first(start, observe):
    device, _ = start()
    order, gate = [], threading.Event()
    device.call(lambda: gate.wait(TIMEOUT))

    def act(work):
        """Submit the action in the completion of the prefill, as a node does."""
        lease = device.engine.kv.acquire(work.result())
        action = device.denoise(lease, time.monotonic() + TIMEOUT)
        action.add_done_callback(lambda _: order.append('action'))
        action.add_done_callback(lambda _: lease.release())

    device.prefill(observe(1), act)
    other = device.prefill(observe(2, robot='b'))
    other.add_done_callback(lambda _: order.append('prefill'))
    background = device.background(lambda: order.append('background'))
    gate.set()
    background.result(TIMEOUT)
    assert order == ['action', 'prefill', 'background']


def test_the_completion_of_a_prefill_runs_on_the_device_thread_however_late_the_caller_is(
    start, observe, monkeypatch
):
    device, _ = start()
    submit, threads = device._jobs.submit, []

    def slow(*arguments):
        future = submit(*arguments)
        wait([future], TIMEOUT)  # as if the caller were preempted here
        return future

    monkeypatch.setattr(device._jobs, 'submit', slow)
    device.prefill(observe(0), lambda _: threads.append(threading.current_thread()))
    assert threads == [device]


def test_what_a_chunk_goes_on_from_is_asked_as_the_work_begins(start, observe):
    device, _ = start()
    handle = device.prefill(observe(0)).result(TIMEOUT)
    busy, gate, order = threading.Event(), threading.Event(), []
    device.call(lambda: (busy.set(), gate.wait(TIMEOUT), order.append('busy')))
    busy.wait(TIMEOUT)
    with device.engine.kv.acquire(handle) as lease:
        soon = time.monotonic() + TIMEOUT
        work = device.denoise(lease, soon, lambda: order.append(threading.current_thread()))
        gate.set()
        assert work.result(TIMEOUT) is not None
    assert order == ['busy', device]


def test_only_the_newest_waiting_frame_of_a_robot_is_prefilled(start, observe):
    device, _ = start()
    gate = threading.Event()
    device.call(gate.wait)
    futures = [device.prefill(observe(i)) for i in range(4)]
    other = device.prefill(observe(9, robot='b'))
    gate.set()
    assert futures[-1].result(TIMEOUT).sequence == 3
    assert other.result(TIMEOUT).sequence == 9
    assert [f.cancelled() for f in futures] == [True, True, True, False]


def test_streams_are_decoded_in_the_slack_and_end_once(start, observe):
    device, said = start()
    handle = device.prefill(observe(0)).result(TIMEOUT)
    streams = [device.engine.open(handle, text, max_tokens=6) for text in ('Subtask:', 'Done?')]
    device.wake()
    wait_for(lambda: not device.engine.kv.streams.live())
    wait_for(lambda: len([d for d in said if d.finished]) == 2)
    for stream in streams:
        mine = [d for d in said if d.stream == stream.id]
        assert [d.finished for d in mine].count(True) == 1 and mine[-1].finished
        text = device.engine.policy.tokenizer.decode(stream.tokens)
        assert ''.join(d.text for d in mine) == text


def test_a_cancelled_stream_is_reported(start, observe):
    device, said = start(time_budget=True)
    handle = device.prefill(observe(0)).result(TIMEOUT)
    stream = device.engine.open(handle, 'Subtask:', max_tokens=80)
    device.engine.cancel(stream.id)
    device.wake()
    wait_for(lambda: said and said[-1].finished)
    assert said[-1].reason == 'cancelled'
    with pytest.raises(KeyError, match='no live stream'):
        device.engine.cancel(stream.id)


def test_an_error_reaches_who_asked_and_the_thread_lives(start, observe):
    device, _ = start()

    def fail():
        raise RuntimeError('broken')

    with pytest.raises(RuntimeError, match='broken'):
        device.call(fail).result(TIMEOUT)
    assert device.prefill(observe(0)).result(TIMEOUT).sequence == 0


def test_failing_language_ends_its_streams_and_actions_go_on(start, observe, monkeypatch):
    device, said = start()
    handle = device.prefill(observe(0)).result(TIMEOUT)

    def fail(*_):
        raise RuntimeError('broken head')

    monkeypatch.setattr(device.engine.policy.model, 'extend', fail)
    device.engine.open(handle, 'Subtask:', max_tokens=6)
    device.wake()
    wait_for(lambda: said)
    assert said[-1].reason == 'error'
    with device.engine.kv.acquire(handle) as lease:
        assert device.denoise(lease, time.monotonic() + TIMEOUT).result(TIMEOUT).steps == 10
    device.engine.kv.check_integrity()


def test_stopping_cancels_what_waits(start, observe):
    device, _ = start()
    gate = threading.Event()
    device.call(gate.wait)
    waiting = device.prefill(observe(0))
    threading.Timer(0.1, gate.set).start()
    device.stop()
    assert waiting.cancelled() and not device.is_alive()
    assert device.prefill(observe(1)).cancelled()
