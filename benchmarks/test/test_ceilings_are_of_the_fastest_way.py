"""The measured ceilings are those of the fastest way to read (by bytes moved) and to multiply."""

import platform

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.common import clock, reading, report
from embodied_kv.model.dtype import cpu_multiplies_bfloat16
from embodied_kv.model.prepacked import X86

BYTES = 1e9
WAYS = {'slow': 1.0, 'fast': 0.25, 'middling': 0.5}  # s


class Operations(TorchDispatchMode):
    """Records the names of the executed operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def test_each_way_reads_all_of_it(monkeypatch):
    monkeypatch.setattr(reading, 'WIDTH', 512)
    found = reading.readings(torch.float32, 'cpu', matrices=4)
    assert {size for _, size in found.values()} == {4 * 512 * 512 * 4}
    for name, (work, _) in found.items():
        with Operations() as ran:
            work()
        reads = [n for n in ran.names if n in ('linear', 'mm', 'packed_product', 'copy_', 'sum')]
        assert len(reads) == (4 if name.endswith('product') else 1), name


@torch.inference_mode()
def test_weights_are_packed_where_a_model_has_them_packed():
    work, _ = reading.readings(torch.bfloat16, 'cpu', matrices=2)['packed_product']
    with Operations() as ran:
        work()
    packs = platform.machine() in X86 and cpu_multiplies_bfloat16()
    assert ran.names.count('packed_product') == (2 if packs else 0)


@pytest.fixture
def timed(monkeypatch):
    """Make each way take its own duration and everything else one second."""
    took = {}

    def readings(dtype, device, matrices=32):
        works = {name: (lambda: None, BYTES) for name in WAYS}
        took.update({work: WAYS[name] for name, (work, _) in works.items()})
        return works

    for module in (clock, report):
        monkeypatch.setattr(module, 'readings', readings)
        monkeypatch.setattr(module, 'seconds', lambda work, *_, **__: took.get(work, 1.0))
    return took


def test_the_fastest_counts(timed):
    assert clock.ceilings('cpu').gbytes == report.ceilings(torch.float32)['gbytes'] == 4.0


def test_the_faster_product_counts(timed, monkeypatch):
    def products(dtype, device):
        works = {name: lambda: None for name in WAYS}
        took.update({work: WAYS[name] for name, work in works.items()})
        return works, int(BYTES)

    took = timed
    for module in (clock, report):
        monkeypatch.setattr(module, 'products', products)
    assert clock.ceilings('cpu').gflops == report.ceilings(torch.float32)['gflops'] == 4.0


@torch.inference_mode()
def test_both_products_are_the_same_work(monkeypatch):
    monkeypatch.setattr(reading, 'WIDTH', 512)
    calls, operations = reading.products(torch.float32, 'cpu')
    assert operations == 2 * 512**3 and len(calls) == 2
    for name, work in calls.items():
        with Operations() as ran:
            assert work().shape == (512, 512), name
        assert len({'linear', 'matmul', 'mm', 'packed_product'} & set(ran.names)) == 1, name


def test_what_hid_a_ceiling_before_hides_none_afterwards(monkeypatch):
    measured = iter([dict(gflops=4.0, gbytes=1.0), dict(gflops=3.0, gbytes=2.0)])
    monkeypatch.setattr(report, 'ceilings', lambda *_: next(measured))
    with report.ceilings_around(torch.float32) as ceiling:
        pass
    assert ceiling == dict(gflops=4.0, gbytes=2.0)
