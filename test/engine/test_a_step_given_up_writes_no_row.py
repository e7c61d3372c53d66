"""A step whose caller stopped waiting does not write the planner's row once its use has ended."""

import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait

import pytest
from planning_cases import QUESTION, TABLE, filled, open_planning, said

from embodied_kv.kv.budget import KvBudget
from embodied_kv.planning.planner_row import PlannerRow

TIMEOUT = 20


class GivingUp:
    """Runs steps; the caller of step `at` stops waiting, and that step is kept in `late`."""

    def __init__(self, at=None):
        self.at, self.late = at, None

    def __call__(self, work):
        if self.at is not None:
            self.at -= 1
            if self.at < 0:
                self.at, self.late = None, work
                raise CancelledError
        return work()


def row_of(planning):
    row = planning.row
    return row.bytes_used, row.bytes_reserved, row.held, [p.clone() for p in row.arena.row(0)]


def assert_same(row, other):
    assert row[:3] == other[:3]
    assert all((a == b).all() for a, b in zip(row[3], other[3], strict=True))


@pytest.mark.parametrize('at', [0, 2, 8])
@pytest.mark.parametrize('work', ['warm', 'plan'])
def test_a_queued_step_of_an_ended_use_does_nothing(tmp_path, work, at):
    step = GivingUp()
    with filled(tmp_path / 'one', step=step) as planning:
        do = planning.warm if work == 'warm' else lambda: planning.plan(QUESTION, method='full')
        step.at = at
        with pytest.raises(CancelledError):
            do()
        before = row_of(planning)
        try:
            step.late()
        except RuntimeError as error:
            assert 'use of the planner row ended' in str(error)
        assert_same(row_of(planning), before)
        planning.row.check_integrity()
        with filled(tmp_path / 'two') as other:
            other.warm(), planning.warm()
            assert said(planning.plan(QUESTION)) == said(other.plan(QUESTION))


def test_a_late_step_takes_nothing_from_the_next_use(tmp_path):
    step = GivingUp()
    with filled(tmp_path, step=step) as planning:
        step.at = 0  # this step would set the length of the row
        with pytest.raises(CancelledError):
            planning.warm()
        planning.plan(QUESTION)
        before = row_of(planning)
        with pytest.raises(RuntimeError):
            step.late()
        assert_same(row_of(planning), before)


def test_a_late_step_of_a_closed_planning_leaves_the_row_of_the_next(tmp_path):
    step = GivingUp()
    planning = filled(tmp_path / 'one', step=step)
    rows = planning.row._rows
    step.at = 2
    with planning, pytest.raises(CancelledError):
        planning.warm()
    with open_planning(tmp_path / 'two', rows=rows) as other:
        with pytest.raises(RuntimeError):
            step.late()
        assert other.row.bytes_used == 0
        rows.check_integrity()


def test_the_end_of_a_use_waits_for_a_step_that_runs(tmp_path, monkeypatch):
    began, goes_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as device, ThreadPoolExecutor(1) as robot:
        running: list[Future] = []

        def step(work):
            running.append(device.submit(work))
            assert began.wait(TIMEOUT)
            raise CancelledError

        with filled(tmp_path, step=step) as planning:
            row = planning.row
            set_length = row.arena.set_length

            def slow(*given):
                began.set()
                assert goes_on.wait(TIMEOUT)
                set_length(*given)

            monkeypatch.setattr(row.arena, 'set_length', slow)
            warming = robot.submit(planning.warm)
            assert began.wait(TIMEOUT)
            wait([warming], 0.3)
            assert not warming.done() and not row.evictable()
            goes_on.set()
            with pytest.raises(CancelledError):
                warming.result(TIMEOUT)
            running[0].result(TIMEOUT)
            assert 0 < row.bytes_used <= row.bytes_reserved
            row.check_integrity()


def test_the_integrity_of_a_row_is_checked_at_one_moment(tmp_path, monkeypatch):
    """The check is consistent, also if the content of the row is evicted during it."""
    with filled(tmp_path, kv_budget=KvBudget(2**30)) as planning:
        planning.plan(QUESTION)
        row = planning.row
        (offer,), used = row.evictable(), PlannerRow.bytes_used
        evicting = threading.Thread(target=offer.evict)

        def read(self):
            before = used.fget(self)
            if threading.current_thread() is checking and not evicting.is_alive():
                evicting.start()
                evicting.join(0.3)  # the eviction may have to wait for the check
            return before

        checking = threading.current_thread()
        monkeypatch.setattr(PlannerRow, 'bytes_used', property(read))
        row.check_integrity()
        evicting.join(TIMEOUT)
        monkeypatch.undo()
        assert row.bytes_used == 0
        row.check_integrity()


def test_a_row_that_holds_more_than_it_reserved_is_found(tmp_path):
    with open_planning(tmp_path) as planning:
        planning.upsert(*TABLE)
        planning.plan(QUESTION)
        planning.row.bytes_reserved -= 1
        with pytest.raises(AssertionError, match='in use, .* reserved'):
            planning.row.check_integrity()
