"""A capsule stores the leftover actions of the action node, and a restore resumes them."""

import threading
import time

import numpy as np
import pytest

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.control.command import PREVIOUS, Measured
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.limits import Limits
from embodied_kv.control.safety_state_machine import SafetyStateMachine
from embodied_kv.control.trajectory_executor import TrajectoryExecutor
from embodied_kv.nodes.control.session_parts import ActionPart
from embodied_kv.types import ActionChunk

DT = 0.1


class Bench:
    """A control loop without a thread, and its part of a capsule."""

    def __init__(self):
        self.commands = []
        limits = Limits('ab', [-9, -9], [9, 9], [5, 5], [50, 50], ['position'] * 2)
        self.loop = ControlLoop(
            TrajectoryExecutor(limits, DT, max_tracking_error=9.0),
            SafetyStateMachine(armed=True),
            DT,
            measured=lambda: Measured(np.zeros(2), time.monotonic(), np.zeros(2)),
            publish=self.commands.append,
            failed=pytest.fail,
        )
        self.part = ActionPart(self.loop, lambda: 10**9, DT, ('hip', 'knee'))

    def frame(self):
        """Offer a chunk of eight actions, of which four may be executed."""
        values = np.repeat(np.arange(8, dtype=np.float32)[:, None] / 10, 2, 1)
        deadline = time.monotonic() + DT
        times = deadline, 7, 10, 1.0, 2.0
        self.loop.offer(ActionChunk(values, DT, 5, *times, execution_horizon=4))
        self.loop.turn()


def test_leftover_up_to_the_horizon_resumes_as_previous():
    bench = Bench()
    assert not bench.part.freeze().tensors
    bench.frame()
    frozen = bench.part.freeze()
    np.testing.assert_allclose(frozen.tensors['values'][-1].numpy(), 0.3, atol=1e-6)
    assert frozen.facts['stamp'] == 5
    other = Bench()
    other.part.check_resumable(frozen)
    resume = threading.Thread(target=other.part.resume, args=(frozen,))  # engine thread
    resume.start()
    resume.join()
    other.loop.turn()
    (command,) = other.commands
    assert (command.source, len(command.confidence)) == (PREVIOUS, 0)
    assert command.execution_horizon == len(command.values) == len(frozen.tensors['values'])


def test_leftover_of_another_robot_is_refused():
    bench = Bench()
    bench.frame()
    frozen = bench.part.freeze()
    for part in (
        ActionPart(bench.loop, lambda: 0, DT, ('hip', 'knee', 'foot')),
        ActionPart(bench.loop, lambda: 0, DT, ('hip', 'foot')),
        ActionPart(bench.loop, lambda: 0, 2 * DT, ('hip', 'knee')),
    ):
        with pytest.raises(CapsuleError):
            part.check_resumable(frozen)
