"""A restore that waits for a policy server resumes nothing from before a stop, nor old actions."""

import time

import numpy as np
import pytest

from embodied_kv.capsule.reentry import Depth, Limits, SceneSummary
from embodied_kv.capsule.registry import Registry
from embodied_kv.control.command import Measured
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.limits import Limits as MotionLimits
from embodied_kv.control.safety_state_machine import ARMED, SafetyStateMachine
from embodied_kv.control.trajectory_executor import TrajectoryExecutor
from embodied_kv.nodes.control.session_parts import ActionPart, InstructionPart
from embodied_kv.serving.remote_policy.remote_part import RemotePart, _Caller
from embodied_kv.session.participant import Participant
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.types import ActionChunk

DT = 0.1
SCENE = SceneSummary(np.zeros(2), {'front': np.zeros((16, 16, 3), np.uint8)}, 10**9, '')


class Server(RemotePart):
    """The part of a policy server. on_restore: called while the server restores its capsule."""

    def __init__(self):
        super().__init__('')
        self.on_restore = lambda: None

    def _call(self, request):
        if request['endpoint'] == 'restore':
            self.on_restore()
        return {'name': 'a', 'capsule': b'bytes'}


class Holding(Participant):
    def __init__(self, robot):
        self.robot = robot

    def on_hold(self):
        self.robot.held += 1


class Robot:
    """A session with the parts of a robot without a model, and its control loop."""

    def __init__(self):
        self.commands, self.instruction, self.held = [], 'A', 0
        limits = MotionLimits('ab', [-9, -9], [9, 9], [5, 5], [50, 50], ['position'] * 2)
        self.loop = ControlLoop(
            TrajectoryExecutor(limits, DT, max_tracking_error=9.0),
            SafetyStateMachine(armed=True),
            DT,
            measured=lambda: Measured(np.zeros(2), time.monotonic(), np.zeros(2)),
            publish=self.commands.append,
            failed=lambda *_: None,
        )
        self.server = Server()
        self.session = RobotSession(self.server, Registry('policy server'), _Caller())
        self.session.register(InstructionPart(lambda: self.instruction, self.tell))
        self.session.register(ActionPart(self.loop, lambda: 10**9, DT, ('hip', 'knee')))
        values = np.repeat(np.arange(8, dtype=np.float32)[:, None] / 10, 2, 1)
        times = time.monotonic() + DT, 7, 10, 1.0, 2.0
        self.loop.offer(ActionChunk(values, DT, 5, *times, execution_horizon=4))
        self.loop.turn()
        self.session.snapshot('before', SCENE)
        self.instruction = 'B'

    def tell(self, instruction):
        self.instruction = instruction

    def restore(self):
        """Restore the capsule, and return the result and the commands that this causes."""
        self.commands.clear()
        resumed = self.session.restore('before', SCENE)
        self.loop.turn()
        return resumed, [command.source for command in self.commands]


@pytest.fixture
def robot():
    return Robot()


def test_instruction_and_actions_resume_without_other_orders(robot):
    resumed, sources = robot.restore()
    assert (resumed.decision.depth, robot.instruction) == (Depth.ACTOR, 'A')
    assert sources == ['previous'] and not resumed.notes


def test_nothing_from_before_a_stop_resumes_after_reset_and_arm(robot):
    def stop_and_arm():
        safety = robot.loop.safety
        safety.stop('operator')
        robot.loop.turn()
        safety.reset()
        safety.arm(time.monotonic())

    robot.server.on_restore = stop_and_arm
    resumed, sources = robot.restore()
    assert robot.loop.safety.state == ARMED
    assert (robot.instruction, 'previous' in sources) == ('B', False)
    assert [note.split(',')[0] for note in resumed.notes] == ['the robot got other orders'] * 2


def test_a_new_instruction_stays(robot):
    robot.server.on_restore = lambda: robot.tell('C')
    resumed, sources = robot.restore()
    assert (robot.instruction, 'previous' in sources) == ('C', False)
    assert len(resumed.notes) == 2


def test_actions_that_became_too_old_do_not_resume(robot):
    robot.session.limits = Limits(max_action_resume_age=0.05)
    robot.server.on_restore = lambda: time.sleep(0.1)
    resumed, sources = robot.restore()
    assert (robot.instruction, 'previous' in sources) == ('A', False)
    assert resumed.notes == ('the capsule is too old by now for its part action',)
    assert resumed.decision.depth is Depth.PLANNER


def test_the_arm_holds_if_the_capsule_became_too_old(robot):
    robot.session.limits = Limits(max_action_resume_age=0.05, max_planner_resume_age=0.05)
    robot.session.participants.join(Holding(robot))
    robot.server.on_restore = lambda: time.sleep(0.1)
    resumed, _ = robot.restore()
    assert (resumed.decision.depth, robot.held, robot.instruction) == (Depth.HOLD, 1, 'B')
