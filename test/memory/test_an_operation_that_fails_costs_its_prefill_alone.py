"""A failing operation of a load or a layer ends all loads; the next prefill refills the row."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from memory_cases import B, KvOfUnits, make_arena, make_planner, make_prompt

from benchmarks.common.hostile_device import HostileDevice, InjectedFaultError
from embodied_kv.memory.keep import Keep
from embodied_kv.memory.prefill import Prefill
from embodied_kv.memory.reuse import Reuse
from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.layers import wavelengths
from embodied_kv.runtime.stream import Stream

FAULTS = 8  # maximum number of failing operations, evenly spread
METHODS = {
    'full_reuse': Reuse,
    'keep': lambda: Keep(0.3),
}


@pytest.mark.parametrize('method', METHODS)
def test_a_prefill_after_one_that_failed_equals_the_first(method):
    model, prompt = make_planner(), make_prompt(segments=5)
    move = Rotation(wavelengths(B.head_dim, B.rope_theta)[None])
    with HostileDevice() as device, ThreadPoolExecutor(1) as computing:
        own, arena = Stream.on('cpu'), make_arena()

        def run(work):
            with own.use():
                return work()

        def filled():
            hidden, _ = prefill.run(prompt, METHODS[method]())
            own.synchronize()
            return hidden.clone(), *(part.clone() for part in arena.row(0))

        units = KvOfUnits(model, prompt)

        def step(work):
            return computing.submit(run, work).result(60)

        prefill = Prefill(model, arena, 0, units, move, step)
        wanted = filled()
        before = device.operations
        filled()
        count = device.operations - before
        for operation in range(0, count, -(-count // FAULTS)):
            device.fail_after(operation)
            with pytest.raises(InjectedFaultError):
                filled()
            assert not [t for t in threading.enumerate() if t.name == 'memory-loader']
            assert all(map(torch.equal, filled(), wanted))
