"""Whoever ends a stream while a step computes with it: its rows stay until the step is over."""

import threading

import pytest
import torch

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.manager import KvManager

SIZE = dict(layers=2, kv_heads=1, max_tokens=16, head_dim=4, dtype=torch.float32)


def make_manager(rows, tails):
    prefixes = Arena(rows=rows, **SIZE)
    return KvManager(prefixes, Arena(rows=tails, **SIZE), CompressedArena(prefixes, 4, 64))


QUERY = Query('?', [5, 6], max_tokens=8)
EOS = 1


@pytest.fixture
def kv():
    return make_manager(5, 2)


def frame(kv, sequence):
    row = kv.reserve(now=0.0)
    return kv.commit(row, 7, robot='', sequence=sequence, stamp=0, deadline=100.0)


def test_a_stream_that_ends_in_a_step_keeps_tail_and_prefix_until_it_is_over(kv):
    stream = kv.create(frame(kv, 1), QUERY)
    frame(kv, 2)  # supersedes: the stream's lease alone holds the first row now
    live = kv.grow([stream], 2)
    kv.release(stream, 'cancelled')
    assert kv.streams() == [] and kv.take_ended() == [stream]
    assert kv.tails.lengths[0, stream.tail] == 2 and kv.prefixes.lengths[0, stream.row] == 7
    kv.check_integrity()
    kv.update(live, [9], EOS)
    assert stream.tokens == []
    assert kv.tails.lengths[0, stream.tail] == 0 and kv.prefixes.lengths[0, stream.row] == 0
    kv.check_integrity()


def test_a_step_that_fails_frees_what_ended_in_it(kv):
    stream = kv.create(frame(kv, 1), QUERY)
    kv.grow([stream], 2)
    kv.release(stream, 'error')
    kv.end_step()
    assert kv.stats().leases == 0
    kv.check_integrity()


def test_a_tail_of_a_step_is_given_to_a_new_stream_only_afterwards(kv):
    handle = frame(kv, 1)
    old = [kv.create(handle, QUERY), kv.create(handle, QUERY)]
    live = kv.grow(old, 2)
    made = []
    creator = threading.Thread(target=lambda: made.append(kv.create(handle, QUERY)))
    creator.start()
    while not old[0].reason:  # it has ended the oldest, and waits
        pass
    assert not made
    kv.update(live, [9, 9], EOS)
    creator.join(10)
    assert made[0].tail == old[0].tail
    assert old[0].reason == 'evicted' and old[1].tokens == [9]
    kv.check_integrity()
