"""A frame that fails leaves an error, and no images that wait for a garbage collection."""

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
    """Its thread runs, and nothing is collected meanwhile."""
    thread = EngineThread(make_engine(), lambda deltas: None)
    thread.start()
    gc.collect()
    gc.disable()
    yield thread
    gc.enable()
    thread.stop()


def refused(device, frame):
    """The message of a frame that cannot be prefilled, and weakly its images."""
    bad, messages = replace(frame, state=np.full_like(frame.state, np.nan)), Queue()

    def prefilled(future):  # as a node has it: a variable of a frame that the error comes through
        try:
            future.result()
        except ValueError as error:
            messages.put(str(error))

    device.prefill(bad).add_done_callback(prefilled)
    return messages.get(timeout=TIMEOUT), [weakref.ref(image) for image in bad.images]


def test_images_of_a_refused_frame_are_gone_at_once(device, observe):
    message, images = refused(device, observe(0))
    assert 'not finite' in message
    device.call(lambda: None).result(TIMEOUT)  # the thread does something else
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
