"""The error of a failed frame keeps no image alive until the next garbage collection."""

import gc
import weakref
from dataclasses import replace
from queue import Queue

import numpy as np
import pytest

from embodied_kv.engine.engine_thread import EngineThread, JobQueue, Priority

TIMEOUT = 20


@pytest.fixture
def device(make_engine):
    """Yield a running engine thread, with the garbage collector disabled."""
    thread = EngineThread(make_engine(), lambda deltas: None)
    thread.start()
    gc.collect()
    gc.disable()
    yield thread
    gc.enable()
    thread.stop()


def refused(device, frame):
    """Prefill an invalid frame; return the error message, and weak references to the images."""
    bad, messages = replace(frame, state=np.full_like(frame.state, np.nan)), Queue()

    def prefilled(future):  # as in a node: `future` is a local variable in the traceback
        try:
            future.result()
        except ValueError as error:
            messages.put(str(error))

    device.prefill(bad).add_done_callback(prefilled)
    return messages.get(timeout=TIMEOUT), [weakref.ref(image) for image in bad.images]


def test_images_of_a_refused_frame_are_gone_at_once(device, observe):
    message, images = refused(device, observe(0))
    assert 'not finite' in message
    device.call(lambda: None).result(TIMEOUT)  # the thread runs another job
    assert not any(image() is not None for image in images)


def test_an_error_still_says_where_it_was_raised():
    def work():
        raise ValueError('here')

    waiting = JobQueue()
    future = waiting.submit(Priority.PREFILL, work)
    waiting.pop(Priority.PREFILL).run()
    places, step = [], future.exception().__traceback__
    while step is not None:
        places.append(step.tb_frame.f_code.co_name)
        step = step.tb_next
    assert places == ['run', 'work']
