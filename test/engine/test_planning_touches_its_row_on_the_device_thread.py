"""A plan waits on its own thread; the row is written and copied on the thread that runs `step`."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from planning_cases import QUESTION, filled

from embodied_kv.kv.arena import Arena


@pytest.fixture
def touched(monkeypatch):
    """Return the names of the threads that read a row of an arena or set its length, by method."""
    threads = {'row': set(), 'set_length': set()}

    def watched(method, found):
        def call(*given):
            found.add(threading.current_thread().name)
            return method(*given)

        return call

    for name, found in threads.items():
        monkeypatch.setattr(Arena, name, watched(getattr(Arena, name), found))
    return threads


def test_a_plan_and_kv_computed_ahead_touch_the_row_on_the_device_thread(tmp_path, touched):
    with ThreadPoolExecutor(1, 'device') as device:
        with filled(tmp_path, step=lambda work: device.submit(work).result()) as planning:
            assert planning.warm(2) == 2
            assert planning.plan(QUESTION).fresh
            assert touched == {'row': {'device_0'}, 'set_length': {'device_0'}}
