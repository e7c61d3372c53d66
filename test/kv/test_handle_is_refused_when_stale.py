"""A handle owns nothing; to acquire it gives a lease, or an error with the reason."""

import re
from dataclasses import replace

import pytest
from kv_cases import make_manager

from embodied_kv.kv.handle import StaleHandleError


@pytest.fixture
def kv():
    return make_manager(4, 2)


def commit(kv, sequence, now=0.0):
    row = kv.reserve(now)
    return kv.frames.commit(row, 5, robot='', sequence=sequence, stamp=0, deadline=now + 0.1)


def test_superseded_and_unleased_is_stale(kv):
    old = commit(kv, 1)
    commit(kv, 2)
    with pytest.raises(StaleHandleError, match='frame 1 is gone'):
        kv.acquire(old)


def test_superseded_but_leased_is_kept_and_can_be_leased_again(kv):
    old = commit(kv, 1)
    lease = kv.acquire(old)
    commit(kv, 2)
    with kv.acquire(old) as second:
        assert second.row == old.row
    lease.release()
    lease.release()  # a second release does nothing
    with pytest.raises(StaleHandleError):
        kv.acquire(old)


def test_rewritten_row_is_stale_though_the_row_is_held(kv):
    old = commit(kv, 1)
    commit(kv, 2)
    newest = commit(kv, 3)
    assert newest.row == old.row
    with pytest.raises(StaleHandleError, match='freed or rewritten'):
        kv.acquire(old)


def test_past_its_deadline_is_stale_once_a_row_is_needed(kv):
    handle = commit(kv, 1)
    kv.frames.abandon(kv.reserve(now=handle.deadline + kv.frames.grace + 0.01))
    with pytest.raises(StaleHandleError):
        kv.acquire(handle)


def test_a_handle_of_another_process_is_refused_with_the_reason(kv):
    with pytest.raises(StaleHandleError, match='another process'):
        kv.acquire(replace(commit(kv, 1), process_id='f' * 32))


def test_a_handle_of_another_layout_is_refused_with_the_reason(kv):
    with pytest.raises(StaleHandleError, match='layout'):
        kv.acquire(replace(commit(kv, 1), layout='0' * 16))


def test_row_that_does_not_exist_is_refused(kv):
    with pytest.raises(StaleHandleError, match='does not exist'):
        kv.acquire(replace(commit(kv, 1), row=99))


@pytest.mark.parametrize(
    'change',
    [{'length': n} for n in (0, -5, 6, 10**6)]
    + [{'robot': 'other'}, {'sequence': 2}, {'stamp': 7}, {'length': 6, 'robot': 'other'}],
)
def test_a_handle_with_other_facts_is_refused_with_the_difference(kv, change):
    handle = commit(kv, 1)
    own = ', '.join(f'{name} {getattr(handle, name)!r}' for name in change)
    given = ', '.join(map(repr, change.values()))
    with pytest.raises(StaleHandleError, match=re.escape(f'must have {own} (got {given})')):
        kv.acquire(replace(handle, **change))
    assert kv.stats().leases == 0


def test_a_lease_has_the_handle_of_the_pool(kv):
    handle = commit(kv, 1)
    with kv.acquire(replace(handle, deadline=1e9, prefill_ms=1e9)) as lease:
        assert lease.handle is kv.frames.current()
        with lease.share() as other:
            assert other.handle is lease.handle


def test_a_freed_row_is_not_freed_twice(kv):
    row = kv.reserve(0.0)
    kv.frames.abandon(row)
    with pytest.raises(KeyError):
        kv.frames.abandon(row)
    kv.check_integrity()
