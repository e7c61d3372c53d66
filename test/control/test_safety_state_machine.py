"""The states disarmed, armed, stopped and taken over forbid motion with a reason."""

import threading

import pytest

from embodied_kv.control.safety_state_machine import (
    ARMED,
    DISARMED,
    STOPPED,
    TAKEN_OVER,
    RefusedError,
    SafetyStateMachine,
)


@pytest.fixture
def safety():
    return SafetyStateMachine(armed=True)


def test_arm_is_disarmed_after_the_start():
    assert SafetyStateMachine().state == DISARMED


def test_stop_latches_until_reset_and_arming(safety):
    safety.stop('a person stopped it')
    safety.stop('and another')
    assert (safety.state, safety.reason) == (STOPPED, 'a person stopped it')
    with pytest.raises(RefusedError, match=r'stopped \(a person stopped it\): reset it first'):
        safety.arm(1.0)
    safety.reset()
    assert (safety.state, safety.reason) == (DISARMED, '')
    safety.arm(2.0)
    assert (safety.state, safety.since) == (ARMED, 2.0)


def test_a_stop_works_from_every_state_and_outlasts_a_take_over():
    for before in (lambda g: None, SafetyStateMachine.disarm, SafetyStateMachine.take_over):
        safety = SafetyStateMachine(armed=True)
        before(safety)
        safety.stop('stop')
        assert safety.state == STOPPED
        safety.give_back(1.0)
        assert safety.state == STOPPED


def test_an_operator_takes_over_and_gives_back(safety):
    safety.take_over()
    assert safety.state == TAKEN_OVER
    safety.give_back(3.0)
    assert (safety.state, safety.since) == (ARMED, 3.0)


def test_taken_over_arm_is_not_armed():
    safety = SafetyStateMachine()
    safety.take_over()
    assert safety.state == DISARMED
    with pytest.raises(RefusedError, match='the operator has taken over'):
        safety.arm(1.0)
    safety.give_back(2.0)
    assert safety.state == DISARMED


def test_all_missing_needs_are_named_and_forbid_arming():
    safety = SafetyStateMachine()
    missing = {'camera': 'no image of view front yet', 'joints': 'no joint state yet'}
    safety.require(lambda now: missing['camera'])
    safety.require(lambda now: missing['joints'])
    assert safety.missing(10.0) == 'no image of view front yet; no joint state yet'
    with pytest.raises(
        RefusedError, match='not armed: no image of view front yet; no joint state'
    ):
        safety.arm(10.0)
    missing.update(camera='', joints='')
    assert safety.missing(10.0) == ''
    safety.arm(10.0)
    missing['camera'] = 'no image of view front for 1.2 s'
    assert safety.missing(11.0) == 'no image of view front for 1.2 s'


@pytest.mark.parametrize('instruction', ['', '  \n'])
def test_empty_instruction_is_missing_but_does_not_latch(safety, instruction):
    safety.set_instruction(instruction)
    assert safety.missing(0.0) == 'no instruction' and safety.state == ARMED


def test_arm_can_be_armed_before_an_instruction():
    safety = SafetyStateMachine(instruction='')
    safety.arm(1.0)
    assert safety.state == ARMED and safety.missing(1.0) == 'no instruction'


def test_arm_is_meant_to_move_once_armed_with_an_instruction():
    safety = SafetyStateMachine(instruction='')
    assert not safety.is_meant_to_move
    safety.arm(1.0)
    assert not safety.is_meant_to_move
    safety.set_instruction('pick up the cup')
    assert safety.is_meant_to_move
    safety.take_over()
    assert not safety.is_meant_to_move


@pytest.mark.parametrize(
    ('change', 'why'),
    [
        (SafetyStateMachine.disarm, 'disarmed: arm it; no instruction'),
        (SafetyStateMachine.take_over, 'an operator has taken over: give it back; no instruction'),
        (
            lambda g: g.stop('a person'),
            'stopped (a person): reset it, then arm it; no instruction',
        ),
        (lambda g: None, 'no instruction'),
        (lambda g: g.set_instruction('go'), ''),
    ],
)
def test_reason_for_standing_includes_the_remedy(change, why):
    safety = SafetyStateMachine(armed=True, instruction='')
    change(safety)
    assert safety.idle_reason(1.0) == why


def test_policy_without_instructions_needs_none(safety):
    assert safety.missing(0.0) == ''


def test_arming_twice_keeps_the_first_moment(safety):
    safety.disarm()
    safety.arm(1.0)
    safety.set_instruction('')
    safety.arm(5.0)
    assert safety.since == 1.0


def test_changes_are_reported_and_stop_never_waits(safety):
    told = []
    safety.watch(lambda: told.append(safety.state))
    asked = threading.Event()
    held = threading.Event()

    def slow(now):
        asked.set()
        held.wait(10)
        return ''

    safety.require(slow)
    checking = threading.Thread(target=safety.missing, args=(0.0,))
    checking.start()
    asked.wait(10)
    safety.stop('now')  # while another thread checks the requirements
    assert told == [STOPPED]
    held.set()
    checking.join()
    for change in (safety.reset, safety.take_over, lambda: safety.give_back(1.0), safety.disarm):
        change()
    assert told == [STOPPED, DISARMED, DISARMED, DISARMED, DISARMED]
