"""The arm comes to rest after signals to the action node or the command watchdog.

Both are real processes; the controller keeps its last value without a timeout. The action node is
a stand-in that sends set-points by the outputs of the real one.
"""

import os
import signal
import time
import uuid

import pytest

from benchmarks.watchdog.stand_ins import (
    PROBLEM,
    action_process,
    controller,
    watchdog_process,
)

CONTRACT, SPEED = 'franka', 1.5  # rad/s
RUN_ON = 0.5  # maximum time (s) from the signal until the controller holds zero
PATIENCE = 120.0  # s for processes to start on a busy machine


class Bed:
    """A watchdog, an action node that moves the arm, and its controller."""

    def __init__(self, keeping, namespace):
        self.controller, self.namespace = keeping, namespace
        self.watchdog = watchdog_process(namespace, CONTRACT)
        self.action = action_process(namespace, CONTRACT, SPEED)
        moves = keeping.wait(lambda: keeping.speed == SPEED, PATIENCE)
        assert moves, f'{self.watchdog.text}\n{self.action.text}'

    def rests(self, since):
        """Return whether the controller held zero in time, and still holds it."""
        assert self.controller.wait(lambda: not self.controller.speed, 10.0), 'the arm moves on'
        time.sleep(0.3)
        seconds, way = self.controller.run_on(since, time.monotonic())
        assert seconds <= RUN_ON and way <= RUN_ON * SPEED
        return not self.controller.speed

    def close(self):
        self.action.close()
        self.watchdog.close()


@pytest.fixture
def bed(ros):
    namespace = f'/dies_{uuid.uuid4().hex[:8]}'
    with controller(namespace, CONTRACT) as keeping:
        bed = Bed(keeping, namespace)
        yield bed
    bed.close()  # last: destroying a node while its peers die can stop Fast DDS


def test_the_arm_rests_after_the_action_node_was_killed(bed):
    assert bed.rests(bed.action.signal(signal.SIGKILL))
    assert bed.watchdog.signal(signal.SIGTERM)
    assert bed.watchdog.wait(PATIENCE) == 0, bed.watchdog.text
    assert 'no set-point for' in bed.watchdog.text


@pytest.mark.slow
def test_a_suspended_action_node_does_not_continue_its_motion(bed):
    assert bed.rests(bed.action.signal(signal.SIGSTOP))
    time.sleep(1.0)
    continued = bed.action.signal(signal.SIGCONT)
    assert bed.controller.wait(lambda: PROBLEM in bed.action.text, PATIENCE)
    time.sleep(0.5)
    assert bed.controller.run_on(continued, time.monotonic()) == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['SIGKILL', 'SIGSTOP'])
def test_the_arm_rests_after_the_watchdog_failed(bed, name):
    failed = bed.watchdog.signal(getattr(signal, name))
    assert bed.rests(failed)
    assert bed.controller.wait(lambda: 'is not running' in bed.action.text, PATIENCE)
    bed.watchdog.signal(signal.SIGCONT) if name == 'SIGSTOP' else None
    time.sleep(0.5)
    assert bed.controller.speed == 0.0


@pytest.mark.slow
@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_the_arm_rests_after_a_signal_to_the_watchdog(bed, name):
    told = bed.watchdog.signal(getattr(signal, name))
    assert bed.rests(told)
    assert bed.watchdog.wait(PATIENCE) == 0, bed.watchdog.text
    assert 'is ending' in bed.action.text


@pytest.mark.slow
def test_the_log_states_where_native_code_crashed(bed):
    assert bed.rests(bed.watchdog.signal(signal.SIGSEGV))
    assert bed.watchdog.wait(PATIENCE) == -signal.SIGSEGV
    assert 'Segmentation fault' in bed.watchdog.text and 'watchdog.py' in bed.watchdog.text


@pytest.mark.slow
def test_the_arm_rests_after_signals_to_both_processes(bed):
    told = bed.action.signal(signal.SIGTERM)
    bed.watchdog.signal(signal.SIGTERM)
    assert bed.rests(told)
    assert bed.watchdog.wait(PATIENCE) == bed.action.wait(PATIENCE) == 0


@pytest.mark.slow
def test_second_watchdog_is_refused_and_the_first_continues(bed):
    second = watchdog_process(bed.namespace, CONTRACT)
    assert second.wait(PATIENCE) == 1 and 'one command watchdog' in second.text
    assert bed.controller.speed == SPEED
    assert os.environ['ROS_DOMAIN_ID']
