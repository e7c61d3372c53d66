"""Real-time requests to the operating system report their outcome."""

import os
import threading

import pytest

from embodied_kv.nodes.control.params import ActionParams


@pytest.fixture
def in_thread():
    """Return a function that runs work in a separate thread, which keeps its effects there."""

    def run(work):
        results = []
        thread = threading.Thread(target=lambda: results.append(work()))
        thread.start()
        thread.join()
        return results[0]

    return run


def test_without_requests_nothing_is_changed(in_thread):
    def work():
        before = os.sched_getaffinity(0), os.sched_getscheduler(0)
        outcome = ActionParams().apply_real_time()
        return before == (os.sched_getaffinity(0), os.sched_getscheduler(0)), outcome

    same, outcome = in_thread(work)
    assert same
    assert outcome == {'lock_memory': 'off', 'cpu_affinity': 'any', 'thread_priority': 'usual'}


def test_core_is_set(in_thread):
    core = min(os.sched_getaffinity(0))

    def work():
        outcome = ActionParams(cpu_affinity=core).apply_real_time()
        return outcome, os.sched_getaffinity(0)

    outcome, affinity = in_thread(work)
    assert outcome['cpu_affinity'] == f'core {core}' and affinity == {core}


def test_missing_core_is_refused(in_thread):
    outcome = in_thread(lambda: ActionParams(cpu_affinity=1023).apply_real_time())
    assert outcome['cpu_affinity'].startswith('refused: ')


def test_a_priority_is_granted_or_refused_with_the_reason(in_thread):
    def work():
        outcome = ActionParams(thread_priority=5).apply_real_time()
        return outcome['thread_priority'], os.sched_getscheduler(0)

    outcome, scheduler = in_thread(work)
    assert (outcome == 'SCHED_FIFO 5') == (scheduler == os.SCHED_FIFO)
    assert outcome == 'SCHED_FIFO 5' or outcome.startswith('refused: ')
