"""Under any KV budget, what actions read is kept, and their frames have room."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from budget_cases import TablePool, Thing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_cases import make_manager, write

from embodied_kv.kv.budget import KvBudget, OverBudgetError
from embodied_kv.kv.decode_stream import Query
from embodied_kv.kv.eviction import EvictionOrder
from embodied_kv.kv.handle import StaleHandleError
from embodied_kv.kv.rows import OutOfRowsError

ROW = 2 * 16 * 2 * 4 * 4  # bytes of a row: k and v, tokens, layers, width, of float32
BUDGET = 4 * ROW
INDEX = st.integers(0, 99)


def manager(clock=lambda: 0.0, **more):
    """Return a manager whose frames have two of the budget's four rows as floor, and a pool."""
    kv_budget = KvBudget(BUDGET, EvictionOrder.read())
    kv = make_manager(
        6, 4, (6, 256), clock=clock, layers=2, kv_budget=kv_budget, floor=2 * ROW, **more
    )
    kv_budget.join(beside := TablePool('host cache'))
    return kv, beside


class Machine(RuleBasedStateMachine):
    """The frames of one robot; an action reads each of them until the next one exists."""

    @initialize()
    def start(self):
        self.now = 0.0
        self.kv, self.beside = manager(lambda: self.now)
        self.action = self.copy = None
        self.frame(7)

    @rule(length=st.integers(1, 16))
    def frame(self, length):
        row = self.kv.reserve(self.now)  # whatever others hold, there is room
        self.handle = write(self.kv, row, length=length, deadline=self.now, prefill_ms=20.0)

    @rule()
    def act(self):
        if self.action is not None:
            self.action.release()
        self.action = self.kv.frames.acquire(self.handle)

    @precondition(lambda self: self.action is not None)
    @rule()
    def compress_for_actions(self):
        kept = [self.indices(3), self.indices(4)]
        copy = self.kv.copies.compress(self.action, kept)
        if copy is not None:
            self.kv.keep_copy(['action'], copy)
            self.copy = self.action.handle, self.kv.copies.arena.bytes_of(copy.row)

    def indices(self, count):
        return torch.arange(min(count, self.action.handle.length))[None]

    @rule(tokens=st.integers(1, 13))
    def ask(self, tokens):
        try:
            self.kv.create(self.handle, Query('?', [5], max_tokens=tokens))
        except (OverBudgetError, StaleHandleError) as error:
            assert str(error)

    @rule(size=st.integers(1, 3 * ROW), cost=st.floats(0.0, 9.0), wait=st.booleans())
    def load(self, size, cost, wait):
        try:
            self.beside.add(self.kv.budget, Thing(size), cost=cost or math.inf, wait=wait)
        except OverBudgetError as error:
            assert 'host cache: no room' in str(error)

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def what_an_action_reads_is_there(self):
        if not hasattr(self, 'kv'):
            return
        self.kv.check_integrity()
        assert self.kv.budget.bytes_used <= BUDGET
        if self.action is not None:
            assert self.kv.frames.is_leased_by(self.action)
        if self.copy is not None and self.kv.frames.holds(self.copy[0]):
            assert self.kv.copies.assigned(self.copy[0], 'action') is not None


TestActions = Machine.TestCase
TestActions.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_stream_takes_the_place_of_what_is_cheaper():
    kv, beside = manager()
    beside.add(kv.budget, Thing(2 * ROW, cost=1e-6))
    stream = kv.create(write(kv, kv.reserve(0.0)), Query('?', [3], max_tokens=9))
    assert not stream.reason and len(beside.gone) == 1


def test_what_is_cheaper_ends_no_stream():
    kv, beside = manager()
    handle = write(kv, kv.reserve(0.0), prefill_ms=1e3)
    streams = [kv.create(handle, Query('?', [3], max_tokens=9)) for _ in range(3)]
    with pytest.raises(OverBudgetError):
        beside.add(kv.budget, Thing(2 * ROW), cost=1e-6)
    assert [stream.reason for stream in streams] == [''] * 3


def test_a_stream_that_finds_no_room_is_refused_and_holds_nothing():
    kv, beside = manager()
    beside.add(kv.budget, Thing(2 * ROW, consumers=('action',)))
    handle = write(kv, kv.reserve(0.0))
    with pytest.raises(
        OverBudgetError, match='streams: no room for .* raise engine.kv_budget_mib'
    ):
        kv.create(handle, Query('?', [3], max_tokens=9))
    assert kv.stats().leases == kv.stats().streams == 0


def test_a_frame_beyond_its_floor_is_refused_as_rows_are():
    kv, beside = manager()
    beside.add(kv.budget, Thing(2 * ROW, consumers=('action',)))
    with kv.reserving(2, 0.0), pytest.raises(OutOfRowsError, match='prefixes: no room'):
        kv.reserve(0.0)


def test_the_sums_are_what_the_arenas_hold():
    kv, beside = manager()
    beside.add(kv.budget, Thing(100))
    kv.create(write(kv, kv.reserve(0.0), length=5), Query('?', [3], max_tokens=9))
    arenas = kv.prefixes, kv.decode_kv, kv.compressed
    held = sum(array.nbytes for arena in arenas for array in (arena.k, arena.v)) + 100
    assert kv.budget.bytes == kv.stats().bytes == held
    assert sum(pool.bytes for pool in kv.budget.stats()) == held
    assert kv.stats().bytes_used == 5 * ROW // 16 + 100


@pytest.mark.parametrize('fault', ['streams', 'beside', 'budget'])
def test_a_planted_fault_is_found(fault):
    kv, beside = manager()
    kv.create(write(kv, kv.reserve(0.0)), Query('?', [3], max_tokens=9))
    kv.check_integrity()
    if fault == 'streams':
        kv.streams.bytes_reserved -= 1
    elif fault == 'beside':
        beside.bytes += 1
    else:
        beside.bytes_reserved = BUDGET
    with pytest.raises(AssertionError):
        kv.check_integrity()


def test_other_pools_are_proven_while_the_rows_are_free_to_others():
    kv, beside = manager()
    with ThreadPoolExecutor(1) as thread:  # the thread reserves a row during the check
        beside.check_integrity = lambda: thread.submit(kv.reserve, 0.0).result(60)
        kv.check_integrity()
    assert kv.frames.rows_free == 5
