"""A job's result is whole on every stream; a fault ends a job or the process, not the thread."""

import threading
import time
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks.common.hostile_device import HostileDevice, InjectedFaultError
from embodied_kv.engine import engine_thread
from embodied_kv.engine.engine_thread import EngineThread, kind_of

TIMEOUT = 30


@pytest.fixture
def start(make_engine):
    threads = []

    def make(on_lost=None, **config):
        engine = make_engine(**config)
        threads.append(EngineThread(engine, lambda deltas: None, on_lost))
        threads[-1].start()
        return threads[-1]

    yield make
    for thread in threads:
        thread.stop()


@pytest.mark.parametrize('submit', ['call', 'background'])
def test_a_result_is_there_for_every_thread(hostile, start, submit):
    device = start()
    keys = device.engine.kv.prefixes.k
    getattr(device, submit)(lambda: keys.fill_(7.0)).result(TIMEOUT)
    assert bool((keys == 7.0).all())


@pytest.mark.parametrize('submit', ['call', 'background'])
def test_work_that_fails_ends_on_the_device_too(hostile, start, submit):
    device = start()
    keys = device.engine.kv.prefixes.k

    def work():
        keys.fill_(7.0)
        raise ValueError('mine')

    with pytest.raises(ValueError, match='mine'):
        getattr(device, submit)(work).result(TIMEOUT)
    assert bool((keys == 7.0).all())


def test_a_late_device_acts_and_answers_as_a_cpu_does(make_engine, observe, start):
    def run():
        device = start()
        handle = device.prefill(observe(1)).result(TIMEOUT)
        stream = device.engine.open(handle, 'what is it?', max_tokens=6)
        device.wake()
        with device.engine.kv.acquire(handle) as lease:
            values = device.denoise(lease, np.inf).result(TIMEOUT).values
        ended(stream)
        return values, list(stream.tokens)

    values, tokens = run()
    with HostileDevice() as late:
        other_values, other_tokens = run()
        assert late.queued
    np.testing.assert_array_equal(other_values, values)
    assert other_tokens == tokens


@pytest.mark.parametrize('part', range(8))
def test_an_operation_that_fails_costs_its_job_alone(hostile, start, observe, part):
    device = start()

    def act():
        handle = device.prefill(observe(1)).result(TIMEOUT)
        with device.engine.kv.acquire(handle) as lease:
            device.denoise(lease, np.inf).result(TIMEOUT)
        stream = device.engine.open(handle, 'what is it?', max_tokens=4)
        device.wake()
        ended(stream)
        return stream.reason

    before = hostile.operations
    act()
    count = hostile.operations - before
    hostile.fail_after(part * count // 8)
    try:
        assert act() == 'error'
    except InjectedFaultError:
        pass
    assert act() == 'length'
    assert device.is_alive()
    device.call(device.engine.kv.check_integrity).result(TIMEOUT)


def ended(stream):
    until = time.monotonic() + TIMEOUT
    while not stream.reason:
        assert time.monotonic() < until, 'the stream does not end'
        time.sleep(0.002)


# ---------------------------------------------------------------------- the idle time


def done():
    return 'done'


def test_a_step_waits_for_idle_time_that_holds_its_measured_cost(start, monkeypatch):
    monkeypatch.setattr(engine_thread, 'PATIENCE', 1e9)
    device = start(time_budget=True)
    budget, idle = device.engine.budget, [0.02]
    device.call(lambda: device.engine.latency.observe(kind_of(done), 0.04)).result(TIMEOUT)
    budget.forecast = lambda now: idle[0]
    step = device.background(partial(done))
    for _ in range(3):  # turns of the thread
        device.call(lambda: None).result(TIMEOUT)
        device.wake()
    time.sleep(0.1)
    assert not step.done()
    idle[0] = 0.06
    device.wake()
    assert step.result(TIMEOUT) == 'done'


def test_a_step_that_never_fits_is_done_after_a_while(start, monkeypatch):
    monkeypatch.setattr(engine_thread, 'PATIENCE', 0.05)
    device = start(time_budget=True)
    device.call(lambda: device.engine.latency.observe(kind_of(done), 0.04)).result(TIMEOUT)
    device.engine.budget.forecast = lambda now: 0.0
    assert [device.background(done).result(TIMEOUT) for _ in range(2)] == ['done'] * 2


def test_a_long_step_delays_none_of_another_kind(start, monkeypatch):
    monkeypatch.setattr(engine_thread, 'PATIENCE', 1e9)
    device = start(time_budget=True)
    device.call(lambda: device.engine.latency.observe(kind_of(done), 0.04)).result(TIMEOUT)
    device.engine.budget.forecast = lambda now: 0.02
    assert device.background(lambda: 'short').result(TIMEOUT) == 'short'


def test_a_step_is_charged_with_its_own_time(start):
    device = start()
    device.background(partial(time.sleep, 0.03)).result(TIMEOUT)
    kind = kind_of(time.sleep)
    assert device.call(lambda: device.engine.latency.estimate(kind)).result(TIMEOUT) >= 0.03


# ---------------------------------------------------------------------- faults of a turn


@pytest.mark.parametrize('place', ['decode_fits', 'next_batch', 'decode', 'deltas'])
def test_language_that_fails_once_leaves_the_thread_alive(start, observe, monkeypatch, place):
    device = start()
    handle = device.prefill(observe(0)).result(TIMEOUT)
    works, failed = getattr(device.engine, place), threading.Event()

    def fail_once(*args):
        if not failed.is_set():
            failed.set()
            raise RuntimeError('broken')
        return works(*args)

    monkeypatch.setattr(device.engine, place, fail_once)
    stream = device.engine.open(handle, 'what?', max_tokens=3)
    device.wake()
    ended(stream)
    assert failed.wait(TIMEOUT)
    assert device.prefill(observe(1)).result(TIMEOUT).sequence == 1


def test_idle_time_that_cannot_be_known_holds_no_step_up(start):
    device = start(time_budget=True)

    def forecast(now):
        raise RuntimeError('broken')

    device.engine.budget.forecast = forecast
    assert device.background(lambda: 'done').result(TIMEOUT) == 'done'
    assert device.call(lambda: 'alive').result(TIMEOUT) == 'alive'


def test_a_margin_longer_than_the_period_does_not_end_the_thread(start, observe):
    device = start(deadline_margin_ms=150.0)  # its time budget is off, and nothing is measured
    handle = device.prefill(observe(0)).result(TIMEOUT)
    stream = device.engine.open(handle, 'what?', max_tokens=3)
    device.wake()
    ended(stream)
    assert stream.reason == 'length' and device.is_alive()


def test_robots_are_not_remembered_beyond_their_prefill(start, observe):
    device = start()
    for n in range(8):
        device.prefill(observe(n, robot=f'robot {n}')).result(TIMEOUT)
    gate = threading.Event()
    device.call(gate.wait)
    older, newer = (device.prefill(observe(n, robot='a')) for n in (8, 9))
    gate.set()
    assert newer.result(TIMEOUT).sequence == 9 and older.cancelled()
    device.call(lambda: None).result(TIMEOUT)
    assert device._newest == {}


# ---------------------------------------------------------------------- a lost device


@pytest.mark.parametrize('work', ['job', 'background', 'language', 'nothing'])
def test_a_lost_device_is_reported_once_all_futures_are_resolved(hostile, start, observe, work):
    lost, resolved = threading.Event(), []
    later = []

    def on_lost(error):
        resolved.extend(future.done() for future in later)
        resolved.append(isinstance(error, torch.AcceleratorError))
        lost.set()

    device = start(on_lost)
    handle = device.prefill(observe(0)).result(TIMEOUT)
    gate = threading.Event()
    device.call(gate.wait)
    later.append(device.background(lambda: None))
    if work == 'language':
        device.engine.open(handle, 'what?', max_tokens=3)
    if work == 'job':
        later.append(device.call(lambda: None))
    hostile.lose()
    gate.set()
    assert lost.wait(TIMEOUT) and all(resolved)
    with pytest.raises(RuntimeError, match='engine thread ended'):
        device.call(lambda: None).result(TIMEOUT)


def test_a_process_whose_device_is_lost_ends_with_status_70(monkeypatch, caplog):
    statuses = []
    monkeypatch.setattr(engine_thread.os, '_exit', statuses.append)
    engine_thread.end_process(torch.AcceleratorError('CUDA error: an illegal memory access'))
    assert statuses == [70] and 'illegal memory access' in caplog.text
