"""Host memory of a capsule, or of a layer of a unit, is one allocation, counted by its size."""

from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.capsule.capsule import Boundary, Capsule
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.kv import transfer
from embodied_kv.memory.cache import HostCache
from embodied_kv.memory.files import KvFiles

DTYPES = st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.complex128])
LAYOUTS = st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=3), DTYPES), max_size=9)


@pytest.fixture
def pinned(monkeypatch):
    """Return the sizes of all pinned allocations of a machine that pins; here none is pinned."""
    sizes, empty = [], torch.empty

    def allocate(*shape, pin_memory=False, **more):
        made = empty(*shape, **more)
        if pin_memory:
            sizes.append(made.nbytes)
        return made

    monkeypatch.setattr(torch, 'empty', allocate)
    monkeypatch.setattr(transfer, '_pins', lambda: True)
    return sizes


def capsule(tensors=20):
    generator = torch.Generator().manual_seed(0)
    made = {
        f'kv/layer{i}': torch.randn(i % 3, 7, generator=generator).to(dtype)
        for i, dtype in zip(
            range(tensors), [torch.float32, torch.bfloat16, torch.uint8] * tensors, strict=False
        )
    }
    return Capsule('a', Boundary('arm', 3, 5), 'ours', made, {'kv': {'rows': [1]}}, 0.0)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@given(LAYOUTS)
def test_what_is_in_a_block_overlaps_nothing_and_is_aligned(layouts):
    sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in layouts]
    with transfer.one_block(sum(sizes) + transfer.ALIGNMENT * len(sizes)):
        made = [transfer.host_memory(shape, dtype) for shape, dtype in layouts]
    for i, (tensor, (shape, dtype)) in enumerate(zip(made, layouts, strict=True)):
        assert (list(tensor.shape), tensor.dtype) == (shape, dtype) and tensor.is_contiguous()
        tensor.fill_(i)
    assert all((tensor == i).all() for i, tensor in enumerate(made))
    assert len({tensor.untyped_storage().data_ptr() for tensor in made}) <= 1


def test_what_does_not_fit_has_memory_of_its_own(pinned):
    with transfer.one_block(64):
        for size in (40, 40, 16, 64):
            assert transfer.host_memory((size,), torch.uint8).nbytes == size
    transfer.host_memory((3,), torch.uint8)
    assert pinned == [64, 40, 64, 3]


def test_a_block_that_nobody_asks_is_never_made(pinned):
    with transfer.one_block(64):
        pass
    assert pinned == []


def test_a_block_belongs_to_one_thread_and_ends_with_an_error(pinned):
    with pytest.raises(ValueError), transfer.one_block(64):
        other = Thread(target=transfer.host_memory, args=((8,), torch.uint8))
        other.start()
        other.join()
        raise ValueError
    transfer.host_memory((9,), torch.uint8)
    assert pinned == [8, 9]


def test_a_capsule_that_comes_to_the_host_is_one_allocation(pinned):
    registry, given = Registry('ours'), capsule()
    registry.add(given, Tier.HOST)
    assert pinned == [transfer.block_bytes(given.tensors.values())] and pinned[0] <= given.bytes
    assert equal(registry.get('a').tensors, given.tensors)


def test_what_is_pinned_already_takes_no_room_of_a_block(pinned, monkeypatch):
    given = capsule()
    first, *rest = given.tensors.values()
    monkeypatch.setattr(torch.Tensor, 'is_pinned', lambda tensor: tensor is first)
    registry = Registry('ours')
    registry.add(given, Tier.HOST)
    assert pinned == [sum(-(-tensor.nbytes // 16) * 16 for tensor in rest)]
    assert equal(registry.get('a').tensors, given.tensors)


def test_a_capsule_that_is_read_from_the_disk_is_one_allocation(pinned, tmp_path):
    given = capsule()
    first = Registry('ours', disk=Disk(tmp_path))
    first.add(given, Tier.DISK)
    first.close()
    registry, _ = Registry('ours', disk=Disk(tmp_path)), pinned.clear()
    read = registry.get('a', promote=Tier.DISK)
    assert pinned == [given.bytes] and equal(read.tensors, given.tensors)


def test_a_layer_of_a_unit_is_one_allocation_and_counted_as_it_is(pinned, tmp_path):
    kv = torch.randn(2, 2, 1, 5, 4)
    files, cache = KvFiles(tmp_path), HostCache(600)
    entry = files.write(1, kv)
    for layer in range(2):
        found = files.read(entry, layer)
        cache.put('unit', layer, found)
        assert torch.equal(torch.stack(found), kv[layer])
    assert pinned == [kv[0].nbytes] * 2 == [160] * 2
    assert cache.bytes == 2 * 256  # pinned memory is allocated in powers of two
    cache.put('other', 0, files.read(entry, 0))
    assert cache.bytes == 2 * 256 and cache.get('unit', 0) is None
    cache.check_integrity()


def test_memory_that_is_not_pinned_is_counted_byte_by_byte(monkeypatch):
    monkeypatch.setattr(transfer, '_pins', lambda: False)
    assert [transfer.held_bytes(size) for size in (0, 1, 5, 4096)] == [0, 1, 5, 4096]
    monkeypatch.setattr(transfer, '_pins', lambda: True)
    assert [transfer.held_bytes(size) for size in (0, 1, 5, 4096, 4097)] == [0, 1, 8, 4096, 8192]
