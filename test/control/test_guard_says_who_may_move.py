"""Disarmed, armed, stopped, taken over: what each forbids, and what is missing."""

import threading

import pytest

from embodied_kv.control.guard import ARMED, DISARMED, STOPPED, TAKEN_OVER, Guard, NotNow


@pytest.fixture
def guard():
    return Guard(armed=True)


def test_nobody_is_armed_by_being_started():
    assert Guard().state == DISARMED


def test_a_stop_latches_until_a_reset_and_then_somebody_must_arm(guard):
    guard.stop('a person stopped it')
    guard.stop('and another')
    assert (guard.state, guard.reason) == (STOPPED, 'a person stopped it')
    with pytest.raises(NotNow, match=r'stopped \(a person stopped it\): reset it first'):
        guard.arm(1.0)
    guard.reset()
    assert (guard.state, guard.reason) == (DISARMED, '')
    guard.arm(2.0)
    assert (guard.state, guard.since) == (ARMED, 2.0)


def test_a_stop_works_from_every_state_and_outlasts_a_take_over():
    for before in (lambda g: None, Guard.disarm, Guard.take_over):
        guard = Guard(armed=True)
        before(guard)
        guard.stop('stop')
        assert guard.state == STOPPED
        guard.give_back(1.0)
        assert guard.state == STOPPED


def test_an_operator_takes_over_and_gives_back(guard):
    guard.take_over()
    assert guard.state == TAKEN_OVER
    guard.give_back(3.0)
    assert (guard.state, guard.since) == (ARMED, 3.0)


def test_an_arm_in_an_operators_hands_is_not_armed():
    guard = Guard()
    guard.take_over()
    assert guard.state == DISARMED
    with pytest.raises(NotNow, match='the operator has taken over'):
        guard.arm(1.0)
    guard.give_back(2.0)
    assert guard.state == DISARMED


def test_what_is_missing_is_named_all_of_it_and_forbids_to_arm():
    guard = Guard()
    missing = {'camera': 'no image of view front yet', 'joints': 'no joint state yet'}
    guard.require(lambda now: missing['camera'])
    guard.require(lambda now: missing['joints'])
    assert guard.check(10.0) == 'no image of view front yet; no joint state yet'
    with pytest.raises(NotNow, match='not armed: no image of view front yet; no joint state'):
        guard.arm(10.0)
    missing.update(camera='', joints='')
    assert guard.check(10.0) == ''
    guard.arm(10.0)
    missing['camera'] = 'no image of view front for 1.2 s'
    assert guard.check(11.0) == 'no image of view front for 1.2 s'


@pytest.mark.parametrize('instruction', ['', '  \n'])
def test_an_empty_instruction_is_missing_but_latches_nothing(guard, instruction):
    guard.tell(instruction)
    assert guard.check(0.0) == 'no instruction' and guard.state == ARMED


def test_an_arm_is_armed_before_it_is_told_what_to_do():
    guard = Guard(instruction='')
    guard.arm(1.0)
    assert guard.state == ARMED and guard.check(1.0) == 'no instruction'


def test_an_arm_is_meant_to_move_once_it_is_armed_and_told_what_to_do():
    guard = Guard(instruction='')
    assert not guard.is_meant_to_move
    guard.arm(1.0)
    assert not guard.is_meant_to_move
    guard.tell('pick up the cup')
    assert guard.is_meant_to_move
    guard.take_over()
    assert not guard.is_meant_to_move


@pytest.mark.parametrize(
    ('change', 'why'),
    [
        (Guard.disarm, 'disarmed: arm it; no instruction'),
        (Guard.take_over, 'an operator has taken over: give it back; no instruction'),
        (
            lambda g: g.stop('a person'),
            'stopped (a person): reset it, then arm it; no instruction',
        ),
        (lambda g: None, 'no instruction'),
        (lambda g: g.tell('go'), ''),
    ],
)
def test_why_an_arm_does_not_move_is_said_with_what_to_do(change, why):
    guard = Guard(armed=True, instruction='')
    change(guard)
    assert guard.why_not(1.0) == why


def test_who_needs_no_instruction_misses_none(guard):
    assert guard.check(0.0) == ''


def test_arming_twice_keeps_the_moment_whatever_is_missing_by_then(guard):
    guard.disarm()
    guard.arm(1.0)
    guard.tell('')
    guard.arm(5.0)
    assert guard.since == 1.0


def test_every_change_is_told_and_a_stop_waits_for_nobody(guard):
    told = []
    guard.watch(lambda: told.append(guard.state))
    asked = threading.Event()
    held = threading.Event()

    def slow(now):
        asked.set()
        held.wait(10)
        return ''

    guard.require(slow)
    checking = threading.Thread(target=guard.check, args=(0.0,))
    checking.start()
    asked.wait(10)
    guard.stop('now')  # while somebody else looks at what is missing
    assert told == [STOPPED]
    held.set()
    checking.join()
    for change in (guard.reset, guard.take_over, lambda: guard.give_back(1.0), guard.disarm):
        change()
    assert told == [STOPPED, DISARMED, DISARMED, DISARMED, DISARMED]
