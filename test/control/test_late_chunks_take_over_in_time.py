"""While inference exceeds a control period, the arm executes the running chunk."""

import numpy as np
import pytest
from control_cases import chunk
from stand import DT, PERIOD, Stand

from embodied_kv.control import control_loop
from embodied_kv.control.rtc import DelayEstimator, RealTimeChunking

CHUNK, HORIZON = 10, 5
ALLOWED = HORIZON * DT


def rising(start):
    """Return a chunk that moves at 1 rad/s from `start`."""
    return start + DT * np.arange(CHUNK)


class LateStand(Stand):
    """A camera of 10 Hz and an engine that takes `latency` s; it works on the newest frame."""

    def __init__(self, latency, *, rtc=True, **options):
        chunking = RealTimeChunking(DelayEstimator(DT, CHUNK, ALLOWED), HORIZON)
        super().__init__(loop=dict(rtc=chunking if rtc else None), **options)
        self.latency, self.guides, self.began = latency, [], self.now

    def _observe(self):
        """Take a frame now and start its chunk."""
        self.loop.expect(self.now + ALLOWED)
        return self.now, self.loop.guide(self.now), self.now + self.latency

    def drive(self, seconds, make=lambda observed, guide: rising(observed)):
        """Run for some seconds with chunks make(s of the frame since the start, guide)."""
        end, work = self.now + seconds, None
        while self.now < end - 1e-9:
            if work is None:
                work = self._observe()
                self.guides.append(work[1])
            observed, guide, ready = work
            if self.now >= ready - 1e-9:
                self._answer(make(observed - self.began, guide), observed, guide)
                work = None
            self.run(0.01)

    def _answer(self, values, observed, guide):
        values = np.repeat(values[:, None], len(self.arm), 1)
        made = chunk(values, DT, deadline=observed + self.loop.allowed)
        self.loop.offer(made, observed, guide)
        self._due = 0.0


def test_every_late_chunk_takes_over_and_no_period_is_missed():
    stand = LateStand(latency=0.3)
    stand.drive(5.0)
    counters = stand.executor.counters
    assert counters.takeovers == 16 and counters.refused == 0
    assert (counters.missed, counters.held, counters.stopped) == (0, 0, 0)
    assert set(stand.sources()) == {'fresh', 'previous'} and not stand.failures
    assert all(command.deadline_met is True for _, command in stand.commands)  # not numpy.bool


def test_the_arm_never_stands_between_late_chunks():
    stand = LateStand(latency=0.3)
    stand.drive(5.0)
    speeds, _ = stand.rates()
    moving = speeds[round(1.5 / 0.002) :, 0]  # at rest until the first chunk
    assert moving.min() > 0.9 and moving.max() < 1.1


def test_a_command_is_published_in_every_control_period():
    stand = LateStand(latency=0.3)
    stand.drive(3.0)
    moments = np.array([moment for moment, _ in stand.commands])
    assert np.diff(moments).max() <= PERIOD + 0.02


def test_without_real_time_chunking_each_late_period_is_missed():
    stand = LateStand(latency=0.3, rtc=False)
    stand.drive(3.0)
    assert stand.executor.counters.missed > 10
    late = [command for _, command in stand.commands if command.source == 'previous']
    assert late and not any(command.deadline_met for command in late)
    assert stand.guides == [None] * len(stand.guides)


def test_chunk_is_computed_for_the_measured_delay():
    stand = LateStand(latency=0.3)
    stand.drive(3.0)
    first, *others = stand.guides
    assert first is None  # no chunk was running
    assert {guide.delay for guide in others} <= {3, 4}  # 0.3 s, and a turn of the loop
    assert stand.loop._rtc.delays.latency == pytest.approx(0.3, abs=0.02)
    assert stand.executor.counters.late == 0


def test_every_command_reports_the_latency_of_its_chunk():
    stand = LateStand(latency=0.3)
    stand.drive(3.0)
    commands = [command for _, command in stand.commands]
    running = commands[[command.source for command in commands].index('fresh') :]
    for command, before in zip(running[1:], running, strict=False):
        if command.source == 'fresh':
            assert command.delay == command.first in (3, 4)
            assert command.latency == command.age == pytest.approx(0.3, abs=0.02)
        else:  # of the chunk that still runs
            assert (command.delay, command.latency) == (before.delay, before.latency)
            assert command.age >= command.latency


def test_restored_leftover_has_no_latency():
    stand = LateStand(latency=0.3)
    stand.drive(2.0)
    left = stand.loop.leftover()
    stand.loop.hold()
    stand.run(1.0)
    stand.loop.resume(left, stamp=0)
    stand.run(0.05)
    resumed = stand.commands[-1][1]
    assert (resumed.source, resumed.delay) == ('previous', 0)
    assert np.isnan(resumed.latency)


def test_leftover_equals_the_executed_motion():
    stand = LateStand(latency=0.3)
    seen = []
    stand.drive(3.0, lambda observed, guide: seen.append((observed, guide)) or rising(observed))
    for observed, guide in seen[5:]:  # the arm has caught up by then
        # The running chunk began 0.3 s before, so that 7 of its 10 actions are left.
        known = np.isfinite(guide.actions[:, 0])
        assert known.sum() in (6, 7) and known[: known.sum()].all()
        wanted = observed + DT * np.arange(CHUNK)
        np.testing.assert_allclose(guide.actions[known, 0], wanted[known], atol=0.02)
        assert guide.weights[: guide.delay].tolist() == [1.0] * guide.delay
        assert not guide.weights[HORIZON:].any()


def test_too_short_delay_is_counted_and_no_action_is_executed_late():
    stand = LateStand(latency=0.15)
    stand.drive(2.0)
    assert stand.executor.counters.late == 0
    stand.latency = 0.45
    stand.drive(0.5)
    assert stand.executor.counters.late == 1
    fresh = [command for _, command in stand.commands if command.source == 'fresh'][-1]
    assert fresh.first == 5 and fresh.deadline_met
    stand.drive(3.0)
    assert stand.executor.counters.late == 1  # now the estimator expects it


def test_ended_chunk_counts_as_missed():
    stand = LateStand(latency=0.3)
    stand.drive(1.0)
    missed = stand.executor.counters.missed
    stand.run(0.6)
    assert stand.executor.counters.missed == missed == 0
    stand.run(1.5)
    assert stand.executor.counters.missed > 5 and stand.sources()[-1] == 'stop'


def test_arm_at_rest_skips_no_action():
    stand = LateStand(latency=0.3, start=(0.0, 0.0))
    stand.drive(0.32)
    fresh = stand.commands[0][1]
    assert (fresh.source, fresh.first, fresh.delay) == ('fresh', 0, 0)
    assert fresh.age == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize('verb', ['stop', 'take_over', 'disarm', 'hold'])
def test_no_leftover_while_the_arm_must_not_move(verb):
    stand = LateStand(latency=0.3)
    stand.drive(2.0)
    assert stand.loop.guide(stand.now) is not None
    if verb == 'hold':
        stand.loop.hold()
    else:
        getattr(stand.safety, verb)(*(['a test'] if verb == 'stop' else []))
        assert stand.loop.guide(stand.now) is None
    stand.run(0.01)
    assert stand.loop.guide(stand.now) is None


def test_restored_leftover_guides_the_next_chunk():
    stand = LateStand(latency=0.3)
    stand.drive(2.0)
    left = stand.loop.leftover()
    stand.loop.hold()
    stand.run(1.0)
    assert stand.loop.guide(stand.now) is None
    stand.loop.resume(left, stamp=0)
    stand.run(0.05)
    guide, known = stand.loop.guide(stand.now), len(left.values)
    assert np.isfinite(guide.actions[: known - 1]).all()
    assert np.isnan(guide.actions[known + 1 :]).all()


def test_delay_does_not_exceed_the_leftover():
    stand = LateStand(latency=0.3)
    stand.drive(2.0)
    stand.run(0.45)
    guide = stand.loop.guide(stand.now)
    known = int(np.isfinite(guide.actions[:, 0]).sum())
    assert 0 < guide.delay <= known <= 3
    assert not guide.weights[known:].any()


@pytest.mark.parametrize('observed', [-3600.0, 0.0, 3600.0, np.nan])
def test_clock_jump_keeps_the_delay_within_the_chunk(observed):
    stand = LateStand(latency=0.3)
    stand.drive(2.0)
    guide = stand.loop.guide(observed)
    assert guide is None or 0 <= guide.delay <= CHUNK
    assert np.isfinite(stand.loop._rtc.delays.expected(stand.now - 3600.0))


def test_next_chunk_continues_a_chunk_that_was_just_offered(monkeypatch):
    monkeypatch.setattr(control_loop, 'SETTLE_TIME', 60.0)  # a busy machine starts the thread late
    stand = LateStand(latency=0.3)
    stand.drive(2.0)
    stand.speaks = False
    observed = stand.now - 0.3
    values = np.full((CHUNK, 2), 9.0)
    stand.loop.start()
    try:
        stand.loop.offer(chunk(values, DT, deadline=observed + ALLOWED), observed)
        guide = stand.loop.guide(stand.now)
        assert guide.actions[1, 0] == 9.0
    finally:
        stand.loop.abandon()
