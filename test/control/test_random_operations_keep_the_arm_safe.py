"""Under random operations, set-points keep all limits, and no motion starts while forbidden."""

import contextlib
import itertools
import math
from collections import Counter

import numpy as np
from control_cases import any_limits, inside
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from stand import TICK, Stand

from embodied_kv.control.safety_state_machine import RefusedError

EVENTS = (
    *('chunk',) * 6,
    *('jump', 'jump', 'late', 'hold', 'stop', 'reset', 'disarm', 'arm', 'arm', 'arm', 'taken'),
    *('given', 'by hand', 'blind', 'seeing', 'seeing', 'silent', 'told', 'told', 'stall', 'sleep'),
)
SHARES = st.lists(st.floats(0, 1), min_size=2, max_size=2)
HAPPENED = Counter()  # events during motions, over all examples


class Watched(Stand):
    """A stand whose arm follows each of 500 set-points per second without delay."""

    def __init__(self, *arguments, **options):
        loop = dict(setpoint_rate=1 / TICK, setpoint_joints=np.ones(2, bool))
        super().__init__(*arguments, loop=loop, **options)
        self.heard = []  # (time, position before, set-point)
        self.loop._commands._publish_setpoint = self.take

    def take(self, setpoint):
        assert self.executor.has_reference or self.safety.is_taken_over
        self.heard.append((self.now, self.arm, setpoint))
        self.arm = setpoint.positions

    def _control(self):
        """Do nothing, because there are no trajectory controllers."""

    def go(self, random):
        """Enable joint states, set an instruction, arm, and offer a chunk."""
        self.speaks = True
        self.safety.set_instruction('reach')
        self.run(0.5)
        self.happen('arm', random)
        self.run(0.1)
        self.happen('chunk', random)
        self.run(random.uniform(0, 0.3))

    @property
    def _is_quiet(self):
        """Return whether the arm is at rest and all set-points, also of a handover, were sent."""
        is_said = self.loop._commands.due == math.inf and not self.loop._hands_over
        return not self.executor.is_moving(self.now) and is_said

    def happen(self, kind, random):
        safety = self.safety
        if kind in ('chunk', 'jump', 'late'):
            values = self.arm + np.cumsum(random.normal(0, 0.05, (8, 2)), axis=0)
            if kind == 'jump':
                values = random.normal(0, 3, (8, 2))
            self.offer(values, age=random.uniform(*((0.3, 3.0) if kind == 'late' else (0, 0.3))))
        elif kind == 'hold':
            self.loop.hold()
        elif kind == 'stop':
            safety.stop('a person')
        elif kind == 'arm' and safety.state != 'armed' and not safety.missing(self.now):
            safety.reset()
            safety.give_back(self.now)
            with contextlib.suppress(RefusedError):  # the arm may still move
                safety.arm(self.now)
        elif kind in ('reset', 'disarm'):
            getattr(safety, kind)()
        elif kind == 'taken':
            safety.take_over()
        elif kind == 'given':
            safety.give_back(self.now)
        elif kind == 'by hand' and self._is_quiet:
            self.arm = inside(self.limits, random.uniform(-0.3, 1.3, 2))
            self._seen.clear()
        elif kind in ('blind', 'seeing'):
            self.speaks = kind == 'seeing'
        elif kind in ('silent', 'told'):
            safety.set_instruction('' if kind == 'silent' else 'reach')
        elif kind == 'stall':
            self.now += random.uniform(0, 0.15)
        elif kind == 'sleep':
            self.now += random.choice([0.5, 1000.0])


def assert_within(stand):
    """Assert limits between consecutive set-points, while nothing else moves the arm."""
    if len(stand.heard) < 2:
        return
    lim = stand.limits
    moments, arms, setpoints = zip(*stand.heard, strict=True)
    arms, positions = np.array(arms)[1:], np.array([s.positions for s in setpoints])[1:]
    velocities = np.array([s.velocities for s in setpoints])
    beyond = np.maximum(positions - lim.upper, lim.lower - positions)
    was = np.maximum(arms - lim.upper, lim.lower - arms)
    assert (beyond <= np.maximum(was, 0.0) + 1e-5).all()  # if outside, only inwards
    assert (np.abs(velocities) <= lim.velocity + 1e-9).all()
    # A joint state is one tick old. The arm does not go faster to catch up after a delay.
    passed = np.clip(np.diff(moments), TICK, 2 * TICK)[:, None] + 1e-9
    assert (np.abs(positions - arms) <= lim.velocity * passed + 1e-9).all()
    rested = (np.diff(moments) > 2 * TICK)[:, None] & ~velocities[1:].any(1, keepdims=True)
    change = np.abs(np.diff(velocities, axis=0))
    assert (rested | (change <= lim.acceleration * passed + 1e-9)).all()


@settings(deadline=None, max_examples=20, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(any_limits(kinds=('position',)), SHARES, st.integers(0, 2**32))
def test_set_points_keep_limits_and_require_the_armed_state(limits, share, seed):
    random = np.random.default_rng(seed)
    stand = Watched(limits, start=inside(limits, share), max_tracking_error=10.0)
    stand.run(0.02)
    for kind in random.choice(EVENTS, 16):
        if random.random() < 0.5:
            stand.go(random)
        HAPPENED[kind] += stand.executor.is_moving(stand.now)
        stand.happen(kind, random)
        stand.turn()
        state, said = stand.safety.state, len(stand.heard)
        moved = stand.executor.is_moving(stand.now)
        stand.run(random.uniform(0, 0.3))
        new = stand.heard[said:]
        if state != 'armed':  # braking only: never faster, and no new motion
            speeds = [np.abs(setpoint.velocities) for *_, setpoint in new]
            assert all((b <= a + 1e-9).all() for a, b in itertools.pairwise(speeds))
            assert moved or not any(speed.any() for speed in speeds)
        if not stand.speaks and stand.now - stand._measured.moment > 0.5 + 3.0:
            assert not stand.executor.is_moving(stand.now)
    assert_within(stand)


def test_generated_examples_interrupt_motions():
    test_set_points_keep_limits_and_require_the_armed_state()  # independent of earlier tests
    assert sum(HAPPENED.values()) > 50 and sum(count > 0 for count in HAPPENED.values()) > 12
