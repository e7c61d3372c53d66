"""The published reference of a trajectory controller is compared with the sent trajectory."""

from collections import deque

import numpy as np
import pytest
from control_cases import limits
from hypothesis import given, settings
from hypothesis import strategies as st
from jtc import SECOND, Point, Trajectory
from stand import PERIOD, TICK, Stand

from embodied_kv.control.controller_reference import (
    GAP,
    LATENCY,
    PATIENCE,
    ControllerReference,
)

LIMITS = limits(lower=-50, upper=50, velocity=2.0, acceleration=10.0)
ALLOWED = 0.2  # the derived tolerance of these limits
POLL = 0.02  # s


class Observed(Stand):
    """A stand whose controller publishes its reference, `publishes` s late, while it is active.

    rejects: whether the controller drops the trajectories of the suite.
    """

    def __init__(self, publishes=0.0, **options):
        self.reference = ControllerReference('/arm', LIMITS.joints, ALLOWED)
        options['loop'] = dict(sent=self._note) | options.get('loop', {})
        super().__init__(
            LIMITS, missed_chunk_limit=100, **dict(max_tracking_error=np.nan) | options
        )
        self.rejects, self.foreign, self.problems = False, None, []
        self._published, self._newest = deque(maxlen=1 + round(publishes / TICK)), None
        receive = self.controller.receive
        self.controller.receive = lambda *sent: 'rejected' if self.rejects else receive(*sent)
        self._receive = receive
        self.run(0.3)

    def _note(self, positions):
        self.reference.send(self.now, positions)

    def _control(self):
        super()._control()
        if self.foreign is not None:
            points = [Point(round(0.5 * SECOND), [self.foreign] * 2)]
            self._receive(Trajectory(list(LIMITS.joints), points), round(self.now * SECOND))
        if self.controller.active:
            self._published.append(self.controller.positions)
            self._newest = self._published[0]
        if round(self.now / TICK) % round(POLL / TICK) == 0:
            self.reference.poll(self.now, self._newest)
            self._newest = None
            self.problems.append(self.reference.problem())

    def act(self, seconds, target):
        """Run a policy that always commands the same position."""
        for _ in range(round(seconds / PERIOD)):
            self.offer(np.full((15, 2), target))
            self.run(PERIOD)

    @property
    def alarms(self):
        return [problem for problem in self.problems if problem]


@settings(deadline=None, max_examples=25)
@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from(['act', 'act', 'act', 'nothing', 'stop', 'blocked']),
            st.floats(0.1, 1.5),
            st.floats(-3, 3),
            st.sampled_from([1.0, 1.0, 0.5, 0.1, 0.0]),
        ),
        min_size=2,
        max_size=6,
    ),
    is_scaling_published=st.booleans(),
    is_tolerant=st.booleans(),
    replacement=st.booleans(),
    from_desired=st.booleans(),
    delay=st.floats(0.0, 0.1),
    publishes=st.floats(0.0, 0.1),
)
def test_controller_that_executes_its_trajectories_raises_no_alarm(
    parts, is_scaling_published, is_tolerant, replacement, from_desired, delay, publishes
):
    share = [1.0]
    tolerant = is_tolerant and is_scaling_published  # otherwise the suite delays its reference
    stand = Observed(
        publishes,
        delay=delay,
        controller=dict(replacement=replacement, from_desired=from_desired),
        loop=dict(speed=lambda: share[0]) if is_scaling_published else {},
        max_tracking_error=np.inf if tolerant else np.nan,
    )
    for kind, seconds, target, scale in parts:
        stand.controller.scale = share[0] = scale
        stand.follows = kind != 'blocked'
        if kind == 'stop':
            stand.safety.stop('a test')
        if kind in ('nothing', 'stop'):
            stand.run(seconds)
        else:
            stand.act(seconds, target)
        if stand.safety.state != 'armed':
            stand.safety.reset()
            stand.safety.disarm()
            stand.controller.scale, stand.follows = 1.0, True
            stand.run(2.0)
            stand.safety.arm(stand.now)
    assert stand.rejected == []
    assert stand.alarms == []


def test_a_paused_controller_that_is_behind_raises_no_alarm():
    share = [1.0]
    restarting = dict(replacement=False, from_desired=False)  # it begins where the arm is
    scaled = dict(speed=lambda: share[0])
    stand = Observed(controller=restarting, loop=scaled, max_tracking_error=np.inf)
    stand.act(0.7, -0.5)
    stand.follows = False
    stand.act(0.3, 0.0)
    stand.follows = True
    stand.controller.scale = share[0] = 0.0
    stand.act(2 * PATIENCE, 0.0)
    assert stand.alarms == []


def test_late_controller_at_full_speed_raises_no_alarm():
    stand = Observed(0.1, delay=0.1, max_tracking_error=np.inf)
    stand.act(4.0, 20.0)
    assert stand.speed[0] == pytest.approx(LIMITS.velocity[0], rel=0.05)
    assert stand.alarms == []


@settings(deadline=None, max_examples=10)
@given(st.floats(0.3, 2.0), st.sampled_from([-1.0, 1.0]), st.floats(0.0, 0.1))
def test_rejected_trajectory_raises_an_alarm_with_both_numbers(after, way, delay):
    stand = Observed(delay=delay, max_tracking_error=np.inf)
    stand.act(after, way * 1.0)
    stand.rejects, place, began = True, stand.controller.positions[0], len(stand.problems)
    stand.act(2.0, way * 8.0)
    assert stand.problems[:began] == [''] * began
    first = next(i for i, problem in enumerate(stand.problems) if problem) - began
    assert PATIENCE < first * POLL < PATIENCE + LATENCY + 2 * PERIOD + 0.4
    said = stand.alarms[0]
    assert said.startswith('controller /arm did not take the trajectory: its reference of joint ')
    assert 'joint_0 is at ' in said and said.endswith(' was sent')
    at, sent = (float(part.split()[-1]) for part in said.replace(' was sent', '').split(','))
    assert abs(at - sent) > ALLOWED and abs(at - place) < 1.0


def test_motion_by_another_program_raises_an_alarm():
    stand = Observed(max_tracking_error=np.inf)
    stand.act(0.5, 1.0)
    assert stand.alarms == []
    stand.foreign = -3.0
    stand.act(2.0, 1.0)
    assert 'did not take the trajectory: its reference of joint joint_0' in stand.alarms[0]


def test_motion_by_another_program_raises_no_alarm_while_the_suite_is_idle():
    stand = Observed()
    stand.act(1.0, 0.5)
    stand.safety.disarm()
    stand.run(1.0)
    stand.move_by_another_program(3.0, 2.0)
    stand.run(2.0)
    assert stand.alarms == []


@pytest.mark.parametrize('moves', [False, True])
def test_an_inactive_controller_is_reported_as_silent_until_it_is_activated(moves):
    stand = Observed(max_tracking_error=np.inf)
    stand.act(0.5, 1.0)
    stand.controller.active, began = False, len(stand.problems)
    stand.act(1.0, 1.0) if moves else stand.run(1.0)
    first = next(i for i, problem in enumerate(stand.problems) if problem) - began
    assert PATIENCE - POLL <= first * POLL <= PATIENCE + 2 * POLL
    assert 'controller /arm has been silent for 0.' in stand.alarms[0]
    assert 'activate it' in stand.alarms[0]
    stand.controller.active = True
    stand.run(2 * POLL)
    assert stand.problems[-1] == ''


def test_a_controller_that_never_published_is_not_silent():
    reference = ControllerReference('/arm', LIMITS.joints, ALLOWED)
    for moment in np.arange(0.0, 5.0, POLL):
        reference.poll(moment, None)
        assert reference.problem() == ''


def test_suspension_of_the_process_does_not_count_as_silence():
    reference = ControllerReference('/arm', LIMITS.joints, ALLOWED)
    reference.poll(0.0, np.zeros(2))
    reference.poll(10.0, None)
    assert GAP < PATIENCE and reference.problem() == ''


def test_joints_without_tolerance_or_position_are_not_compared():
    reference = ControllerReference('/arm', LIMITS.joints, [np.inf, ALLOWED])
    for moment in np.arange(0.0, 5.0, POLL):
        reference.send(moment, np.ones(2))
        reference.poll(moment, [0.0, np.nan])
        assert reference.problem() == reference.explanation() == ''


def test_clock_set_back_restarts_the_comparison():
    reference = ControllerReference('/arm', LIMITS.joints, ALLOWED)
    for begin in (100.0, 0.0):
        for moment in begin + np.arange(0.0, 1.0, POLL):
            reference.send(moment, np.ones(2))
            reference.poll(moment, [0.0, 0.0])
        assert '1.000 was sent' in reference.problem()


def test_the_reference_explains_why_an_arm_does_not_follow():
    stand = Observed()
    explained = []
    stand.loop._report_failure = lambda error: explained.append(stand.reference.explanation())
    stand.rejects = True
    stand.act(1.5, 3.0)
    assert stand.safety.state == 'disarmed'
    assert 'controller /arm did not take the trajectory' in explained[0]


def test_the_reference_of_a_slow_controller_explains_nothing():
    stand = Observed(controller=dict(replacement=False))
    explained = []
    stand.loop._report_failure = lambda error: explained.append(stand.reference.explanation())
    stand.controller.scale = 0.1  # a speed slider whose value no driver publishes
    stand.act(3.0, 3.0)
    assert stand.safety.state == 'disarmed'
    assert explained[0] == ''
