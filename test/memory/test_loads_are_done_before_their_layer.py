"""On a device with delayed copies, no layer reads KV before it has been loaded."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from memory_cases import B, KvOfUnits, make_arena, make_planner, make_prompt

from benchmarks.common.hostile_device import HostileDevice
from embodied_kv.memory.keep import Keep
from embodied_kv.memory.loader import Loader, LoadQueue
from embodied_kv.memory.prefill import Prefill
from embodied_kv.memory.reuse import Reuse
from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.layers import wavelengths
from embodied_kv.runtime.stream import Stream

MOVE = Rotation(wavelengths(B.head_dim, B.rope_theta)[None])
METHODS = {
    'full_reuse': Reuse,
    'keep': lambda: Keep(0.3),
}


def prefilled(method, step=lambda work: work()):
    """Return the hidden state of the last token, and the valid K and V of the row."""
    model, prompt = make_planner(), make_prompt(segments=5)
    arena = make_arena()
    prefill = Prefill(model, arena, 0, KvOfUnits(model, prompt), MOVE, step)
    hidden, _ = prefill.run(prompt, METHODS[method]())
    return hidden, *arena.row(0)


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('launched', [True, False], ids=['launched', 'waited for'])
def test_computing_on_another_thread_equals_computing_on_the_loading_one(method, launched):
    torch.set_num_threads(1)  # on both threads, since it splits sums
    wanted = prefilled(method)
    with HostileDevice(delay=0.003) as device, ThreadPoolExecutor(1) as computing:
        own = Stream.on('cpu')

        def run(work):
            torch.set_num_threads(1)
            with own.use():
                result = work()
                if not launched:
                    own.synchronize()
                return result

        got = prefilled(method, lambda work: computing.submit(run, work).result(60))
        own.synchronize()
        assert device.queued
        for one, other in zip(got, wanted, strict=True):
            assert torch.equal(one, other)


def test_the_first_load_is_written_after_the_work_that_it_follows():
    order = []
    with HostileDevice():
        own = Stream.on('cpu')
        own.launch(lambda: order.append('computed'))

        def load(unit, layer):
            Stream.current('cpu').launch(lambda: order.append('loaded'))

        with Loader(LoadQueue(1, ['a']), load, after=own.record()) as loader:
            loader.drop(['a'], 0)
            with loader.computing(0):
                assert order == ['computed', 'loaded']


def test_no_load_is_under_way_after_the_context_even_if_the_layer_failed():
    done, loaded = [], threading.Event()

    def load(unit, layer):
        Stream.current('cpu').launch(lambda: done.append(layer))
        loaded.set()

    with (
        HostileDevice(),
        pytest.raises(ZeroDivisionError),
        Loader(LoadQueue(2, ['a']), load) as loader,
    ):
        loader.drop(['a'], 1)
        with loader.computing(0):
            loaded.wait(10)
            raise ZeroDivisionError
    assert done == [1]


def test_a_stream_that_takes_over_a_rotation_waits_for_the_one_that_made_it():
    move, keys = Rotation(wavelengths(4, 10.0)[None]), torch.ones(1, 1, 4)
    with HostileDevice():
        one, other = Stream.on('cpu'), Stream.on('cpu')
        order = []
        with one.use():
            one.launch(lambda: order.append('before it is made'))
            move(keys, 3)
        with other.use():
            move(keys, 3)
            other.launch(lambda: order.append('used'))
        other.synchronize()
    assert order == ['before it is made', 'used']
