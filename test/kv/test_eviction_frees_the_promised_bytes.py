"""After any operations an eviction offer frees the promised bytes, and nothing that is in use.

What an action leases, what is being written and what a step computes with are never touched,
whether the offer is new or old.
"""

import heapq

import eviction_reference as reference
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_cases import frame, make_manager, write

from embodied_kv.kv.budget import EvictionPlan, KvBudget
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.eviction import EvictionOrder
from embodied_kv.kv.handle import StaleHandleError
from embodied_kv.kv.rows import OutOfRowsError

EOS = 1
INDEX = st.integers(0, 99)


def some(handle, tokens):
    """Return positions [kv_heads, n] for each of two layers."""
    return [torch.arange(min(tokens + layer, handle.length))[None] for layer in range(2)]


class Machine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.now = 0.0
        kv_budget = KvBudget(order=EvictionOrder.read())
        self.kv = make_manager(
            6, 4, (6, 256), clock=lambda: self.now, layers=2, kv_budget=kv_budget
        )
        self.kv.streams.token_seconds = 0.25
        self.writing, self.handles, self.leases, self.live = [], [], [], []
        self.offers = []  # from an earlier time

    def of(self, items, index):
        return items[index % len(items)]

    @rule(robot=st.sampled_from('ab'), prefill_ms=st.sampled_from([0.0, 500.0, 3000.0]))
    def prefill(self, robot, prefill_ms):
        try:
            row = self.kv.reserve(self.now)
        except OutOfRowsError:
            return
        self.handles.append(write(self.kv, row, 0, robot, 8, self.now, prefill_ms))

    @precondition(lambda self: len(self.writing) < 2)
    @rule()
    def reserve(self):
        try:
            self.writing.append(self.kv.reserve(self.now))
        except OutOfRowsError:
            pass

    @precondition(lambda self: self.writing)
    @rule(length=st.integers(1, 16), robot=st.sampled_from('ab'), lasts=st.floats(-1, 2))
    def commit(self, length, robot, lasts):
        row, deadline = self.writing.pop(), self.now + lasts
        self.handles.append(write(self.kv, row, 0, robot, length, deadline))

    @precondition(lambda self: self.writing)
    @rule()
    def abandon(self):
        self.kv.frames.abandon(self.writing.pop())

    @precondition(lambda self: self.handles and len(self.leases) < 3)
    @rule(index=INDEX)
    def act(self, index):
        try:
            self.leases.append(self.kv.acquire(self.of(self.handles[-5:], index)))
        except StaleHandleError:
            pass

    @precondition(lambda self: self.leases)
    @rule(index=INDEX)
    def acted(self, index):
        self.leases.pop(index % len(self.leases)).release()

    @precondition(lambda self: self.handles and not self.live)
    @rule(index=INDEX)
    def ask(self, index):
        try:
            self.kv.create(self.of(self.handles[-5:], index), Query('?', [5, 6], max_tokens=8))
        except StaleHandleError:
            pass

    @precondition(lambda self: self.handles)
    @rule(index=INDEX, tokens=st.integers(1, 9), both=st.booleans())
    def copy_a_frame(self, index, tokens, both):
        handle = self.of(self.handles[-5:], index)
        try:
            with self.kv.frames.acquire(handle) as lease:
                copy = self.kv.copies.compress(lease, some(handle, tokens))
        except StaleHandleError:
            return
        if copy is not None:
            self.kv.keep_copy(['language', 'action'] if both else ['language'], copy)

    @precondition(lambda self: self.kv.streams.live())
    @rule(index=INDEX, tokens=st.integers(1, 9))
    def compress_a_stream(self, index, tokens):
        stream = self.of(self.kv.streams.live(), index)
        if not stream.lease.is_copy:
            kept = some(stream.lease.handle, tokens)
            copy = self.kv.copies.compress(stream.lease, kept)
            if copy is not None:
                self.kv.streams.hold_copy(stream, copy)

    @precondition(lambda self: self.kv.streams.live() and not self.live)
    @rule()
    def begin_a_step(self):
        self.look()  # these offers must not evict anything of the step
        streams = self.kv.streams.live()
        new = [stream for stream in streams if stream.is_new][:1]
        self.live = self.kv.streams.grow(new or streams, 2 if new else 1)

    @precondition(lambda self: self.live)
    @rule(token=st.integers(EOS, 4))
    def end_the_step(self, token):
        self.kv.streams.update(self.live, [[token]] * len(self.live), EOS)
        self.live = []

    @precondition(lambda self: self.kv.streams.live())
    @rule(index=INDEX)
    def cancel(self, index):
        self.kv.streams.release(self.of(self.kv.streams.live(), index), 'cancelled')

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def look(self):
        self.offers = [offer for pool in self.kv.pools for offer in pool.evictable()]

    def used(self):
        return sum(pool.bytes_used for pool in self.kv.pools)

    def reserved(self):
        return sum(pool.bytes_reserved for pool in self.kv.pools)

    def held(self):
        """Return what is in use, and what no eviction may change."""
        return [
            [(h.row, int(self.kv.prefixes.lengths[0, h.row])) for h in self.acting()],
            [row for row in self.writing if self.kv.frames.is_writing(self.kv.frames.place(row))],
            [
                (stream.reason, self.kv.decode_kv.bytes_of(stream.decode_row))
                for stream in self.live
            ],
        ]

    def acting(self):
        return [lease.handle for lease in self.leases if self.kv.frames.holds(lease.handle)]

    def evict(self, offer):
        before, held = self.reserved(), self.held()
        freed = offer.evict()
        assert freed == before - self.reserved()
        assert self.held() == held
        assert offer.evict() == 0 and self.reserved() == before - freed  # it is evicted already
        self.kv.check_integrity()
        return freed

    @rule(pool=st.integers(0, 2), index=INDEX)
    def evict_one(self, pool, index):
        offers = self.kv.pools[pool].evictable()
        if offers:
            offer, used = self.of(offers, index), self.used()
            assert self.evict(offer) == offer.size and used - self.used() == offer.bytes

    @rule(chosen=st.lists(st.integers(0, 9), max_size=8, unique=True))
    def evict_several(self, chosen):
        """Evict several offers; they free at least the predicted bytes, also with shared rows."""
        offers = [(pool, offer) for pool in self.kv.pools for offer in pool.evictable()]
        going = EvictionPlan({pool: pool.bytes_reserved for pool in self.kv.pools})
        some = [offers[index] for index in chosen if index < len(offers)]
        before, foretold = self.reserved(), sum(going.add(*offer) for offer in some)
        for _, offer in some:
            offer.evict()
        assert before - self.reserved() >= foretold
        self.kv.check_integrity()

    @precondition(lambda self: self.offers)
    @rule(index=INDEX)
    def evict_what_was_offered_before(self, index):
        self.evict(self.offers.pop(index % len(self.offers)))

    @invariant()
    def the_choice_is_that_of_looking_at_everything(self):
        if not hasattr(self, 'kv'):
            return
        kv, order, least = self.kv, self.kv.budget._order, self.kv.streams.least_valuable
        offers = [
            (o.evict.args[0], o.size, o.bytes, pytest.approx(o.cost))
            for o in kv.streams.evictable()
        ]
        assert reference.stream_offers(kv) == offers
        merged = heapq.merge(*map(order.ranked, kv.pools), key=lambda ranked: ranked[0])
        wanted = reference.ranked(order, kv.pools)
        assert [reference.facts(o) for *_, o in merged] == list(map(reference.facts, wanted))
        each = [[stream] for stream in kv.streams.live()]
        assert least(kv.streams.each(), 9) == reference.least(kv, each)
        groups, freeing = kv.streams.by_row(), reference.freeing(kv)
        assert least(groups, 9) == reference.least(kv, reference.by_row(kv).values())
        assert least(groups.only(groups.frees), 9) == reference.least(kv, freeing.values())
        assert kv.streams.rows_freeable == len(freeing)

    @invariant()
    def what_is_held_is_there(self):
        if hasattr(self, 'kv'):
            self.kv.check_integrity()
            assert len(self.acting()) == len(self.leases)
            assert len(self.held()[1]) == len(self.writing)
            stats, pools = self.kv.stats(), self.kv.pools
            arenas = self.kv.prefixes, self.kv.decode_kv, self.kv.compressed
            assert stats.bytes == sum(pool.bytes for pool in pools)
            assert stats.bytes == sum(a.k.nbytes + a.v.nbytes for a in arenas)
            assert stats.bytes_used == self.used()

    def teardown(self):
        """Evict everything at the end, when nothing is in use."""
        if not hasattr(self, 'kv'):
            return
        for lease in self.leases:
            lease.release()
        for row in self.writing:
            self.kv.frames.abandon(row)
        self.leases, self.writing = [], []
        for stream in self.live:
            self.kv.streams.release(stream, 'error')
        self.kv.streams.end_step()
        self.live, self.now = [], self.now + 10.0
        while offers := [offer for pool in self.kv.pools for offer in pool.evictable()]:
            assert self.evict(offers[0]) == offers[0].size
        assert self.used() == 0 and self.kv.stats().rows_free == 6


TestEvicting = Machine.TestCase
TestEvicting.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def kv(clock):
    return make_manager(5, 3, layers=2, clock=lambda: clock[0])


def test_a_frame_goes_after_its_grace_and_with_its_copies(kv, clock):
    handle = write(kv, kv.reserve(0.0), length=8, deadline=-1.0, prefill_ms=30.0)
    with kv.frames.acquire(handle) as lease:
        kv.keep_copy(['action'], kv.copies.compress(lease, some(handle, 2)))
        clock[0] = 1.5
        assert kv.frames.evictable() == []  # an action reads it
    clock[0] = 0.5
    assert kv.frames.evictable() == []  # the caller that prefilled it has not leased it yet
    clock[0] = 1.5
    (offer,) = kv.frames.evictable()
    assert offer.bytes == (2 * 8 + 5) * kv.prefixes.bytes_per_token
    assert offer.cost == pytest.approx(0.03)
    assert offer.evict() == offer.bytes and kv.stats().compressed == 0


def test_a_stream_costs_its_prefill_and_its_tokens(kv):
    handle = write(kv, kv.reserve(0.0), length=8, prefill_ms=30.0)
    stream = kv.create(handle, Query('?', [3], max_tokens=9))
    for token in (4, 5):
        kv.streams.update(kv.streams.grow([stream], 1), [[token]], EOS)
    kv.streams.token_seconds = 0.25
    (offer,) = kv.streams.evictable()
    assert offer.cost == pytest.approx(0.03 + 2 * 0.25)
    assert offer.bytes == 2 * 2 * kv.prefixes.bytes_per_token  # its frame stays: it is the newest
    frame(kv, 2)
    (offer,) = kv.streams.evictable()
    assert offer.bytes == 2 * (2 + 8) * kv.prefixes.bytes_per_token
    assert offer.evict() == offer.size > offer.bytes and stream.reason == 'evicted'
    assert kv.stats().evictions == 1


def test_an_evicted_copy_leaves_the_row_to_read(kv):
    handle = write(kv, kv.reserve(0.0))
    with kv.frames.acquire(handle) as lease:
        kv.keep_copy(['language', 'action'], kv.copies.compress(lease, some(handle, 2)))
        stream = kv.create(handle, Query('?', [3], max_tokens=9))
        assert stream.lease.is_copy and not kv.copies.evictable()
        kv.streams.release(stream, 'cancelled')
        (offer,) = kv.copies.evictable()
        with kv.reading([lease], 'action') as (read,):
            assert read.is_copy and not kv.copies.evictable() and offer.evict() == 0
        assert offer.evict() == offer.bytes > 0
        with kv.reading([lease], 'action') as (read,):
            assert read is lease
    kv.check_integrity()
