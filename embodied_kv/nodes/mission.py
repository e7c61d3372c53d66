"""The mission node: splits a mission into steps, each an instruction for the policy.

The module has the action server and the thread of a mission. `planning.mission` has the sequence
of its steps, and `missions.adapter` calls the services of the robot.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from std_msgs.msg import String

from embodied_kv.action import Mission as MissionAction
from embodied_kv.capsule.tiers import Tier
from embodied_kv.errors import ErrorCode
from embodied_kv.msg import ControlState
from embodied_kv.msg import MissionState as MissionStateMsg
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import SuiteParams, param
from embodied_kv.nodes.missions.adapter import MissionAdapter
from embodied_kv.nodes.missions.clients import MissionClients
from embodied_kv.planning.domain import load_domain
from embodied_kv.planning.mission import Mission as Run
from embodied_kv.planning.mission import (
    MissionEnd,
    MissionInterruptedError,
    MissionPart,
    MissionState,
)
from embodied_kv.text import shown

FEEDBACK = 0.2  # s between two messages of feedback
LONGEST = 400  # maximum length (characters) of a mission
INACTIVE = 'the mission node is no longer active'
RESTORED = 'a capsule takes its place'
CHANGES = 16  # queue depth of `control/state`


@dataclass(frozen=True)
class MissionParams:
    """Parameters of missions."""

    step_time_limit: float = param(
        20.0, 'Time limit (s) of a step if the goal has none', 'live', range=(1.0, 3600.0)
    )
    restore_on_failure: bool = param(
        True,
        'Restore the computation of before a step that failed. The arm is never moved back',
        'live',
        old=('rewind',),
    )
    step_checkpoint_tier: str = param(
        'disk',
        'Tier that stores the checkpoint (a capsule) of before each step: disk, which outlives '
        'the process; host or device',
        'live',
        old=('boundary_tier',),
        check=Tier,
    )


@dataclass
class Running:
    """A mission in progress, on its own thread; `end` is set when it is over.

    A mission that was resumed from a capsule has no goal handle.
    """

    run: Run
    calls: MissionClients
    handle: ServerGoalHandle | None
    began: float
    thread: threading.Thread | None = None
    end: MissionEnd | None = None

    @property
    def is_cancelled(self) -> bool:
        return self.handle is not None and self.handle.is_cancel_requested


class Mission(SuiteNode):
    """Serves the action `mission`, one goal at a time; only `stop` and cleanup wait for a goal."""

    may_wait = True
    calls: Callable[..., MissionClients] = MissionClients

    def __init__(self, **arguments: object) -> None:
        super().__init__('mission', MissionParams, **arguments)
        self._running: Running | None = None

    @property
    def autostart(self) -> bool:
        """Return False if the policy cannot carry out missions; the log has the reason."""
        if not super().autostart:
            return False
        language = self.params.read(SuiteParams).embodiment().contract.language
        if not language.questions:
            missing = 'language.questions must be true (got false)'
        elif not language.planner and not language.success:
            missing = 'language.success must be a question where there is no planner (got none)'
        else:
            return True
        self.log_info('questions', f'mission stays unconfigured: in the contract, {missing}')
        return False

    def setup(self) -> None:
        self._session = self.host.session(self.robot)
        self._domain = load_domain(self.embodiment.contract.language)
        self._leaving: Running | None = None  # interrupted, but its thread has not ended
        self._over: dict[bytes, tuple[Running, MissionEnd]] = {}  # by goal; results not sent yet
        self._coming: tuple[MissionState | None, ...] = ()  # restored; (None,): no mission
        self._arm: int | None = None  # the newest ControlState.state
        self._part = MissionPart(lambda: self.state, self._resume_mission)
        every = qos.heard(qos.STATUS, CHANGES)
        self.subscribe(ControlState, 'control/state', self._on_arm, every, always=True)
        self._instructions = self.publisher(String, 'instruction', qos.INSTRUCTION)
        self._states = self.publisher(MissionStateMsg, 'mission/state', qos.STATUS)
        self._server = ActionServer(
            self,
            MissionAction,
            'mission',
            self._execute,
            goal_callback=self._admit,
            handle_accepted_callback=self._accept,
            cancel_callback=lambda goal: CancelResponse.ACCEPT,
        )
        self._release.callback(self._close)
        self.every(FEEDBACK, self._look)

    def start(self) -> None:
        self._coming = ()
        self._session.register(self._part)

    def stop(self) -> None:
        self._session.unregister(self._part)  # an inactive node resumes no mission
        self._coming = ()
        self.end_mission(INACTIVE, ErrorCode.NOT_ACTIVE)
        leaving = self._leaving
        if leaving is not None and leaving.thread is not None:
            leaving.thread.join()
            self._settle()

    def _close(self) -> None:
        self.stop()
        self._server.destroy()

    @property
    def state(self) -> MissionState | None:
        """Return the state of the mission in progress; None without one."""
        running = self._running
        return None if running is None or running.end else running.run.state

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        state = self.state
        if state is None:
            return OK, 'no mission', {}
        values = {'mission': state.words, 'part': state.part, 'steps': state.steps}
        failed = sum(not tried.done for tried in state.tried)
        return (WARN if failed else OK), state.acting or 'planning', values

    # ------------------------------------------------------------------ goals

    def _admit(self, request: MissionAction.Goal) -> GoalResponse:
        limit = request.step_time_limit
        if not self.active:
            refusal = 'the mission node is not active'
        elif not request.mission.strip():
            refusal = 'mission must not be empty'
        elif (length := len(request.mission)) > LONGEST:
            refusal = f'mission must have at most {LONGEST} characters (got {length})'
        elif not 0 <= limit < math.inf:
            refusal = f'step_time_limit must be finite and at least 0 (got {limit})'
        else:
            return GoalResponse.ACCEPT
        self.log_warning('goal', f'mission refused: {refusal}')
        return GoalResponse.REJECT

    def _accept(self, handle: ServerGoalHandle) -> None:
        request = handle.request
        words, limit = request.mission.strip(), request.step_time_limit
        self._coming = ()
        self._begin(MissionState(words, step_time_limit=limit), handle)

    def _begin(self, state: MissionState, handle: ServerGoalHandle | None) -> None:
        self.end_mission('another mission takes its place')
        self._instructions.publish(String())  # the arm stands during scene queries and planning
        params = self.params.read(MissionParams)
        calls = self.calls(self)
        adapter = MissionAdapter(
            calls,
            self._session,
            self._domain,
            bool(self.embodiment.contract.language.planner),
            Tier(params.step_checkpoint_tier),
            state.step_time_limit or params.step_time_limit,
            on_words=lambda words: self.log_info('said', f'the mission says: {words}'),
            on_fault=lambda words: self.log_warning('mission', words),
        )
        run = Run(adapter, state, rewinds=params.restore_on_failure, on_state=self._publish)
        self._running = Running(run, calls, handle, time.monotonic())
        self._start_next()

    def _start_next(self) -> None:
        """Start the accepted mission when the thread of the previous one has ended."""
        running = self._running
        if running is None or running.thread is not None or self._leaving is not None:
            return
        state = running.run.state
        running.thread = threading.Thread(target=self._carry_out, args=[running], name='mission')
        self.log_info('mission', f"mission: '{shown(state.words)}'")
        self._publish(state)
        running.thread.start()

    def _carry_out(self, running: Running) -> None:
        """Run a mission; the target of its thread."""
        observer = self._session.observer
        try:
            running.calls.there(lambda: self._arm is not None, 'control/state')
            with observer.watching():
                if observer.has_source:
                    # The first question needs a frame that shows the present scene.
                    observer.present_scene(running.calls.check, newer=True)
                running.end = running.run.run()
        except MissionInterruptedError as reason:
            running.end = MissionEnd(reason.code, str(reason), running.run.state)
        except Exception as error:  # any error ends the mission with a result
            self.log_exception('a mission', error)
            why = 'failed: see the log of the node'
            running.end = MissionEnd(ErrorCode.UNKNOWN, why, running.run.state)

    def end_mission(self, why: str = '', code: ErrorCode = ErrorCode.PREEMPTED) -> None:
        """End the present mission, for this reason if it is not over.

        Its instruction ends at once; `_settle` sends the result when its thread has ended.
        """
        running, self._running = self._running, None
        if running is None:
            return
        if running.thread is None:
            self._conclude(running, MissionEnd(code, why, running.run.state))
            return
        running.calls.interrupt(why, code)
        running.calls.cancel()
        self._leaving = running
        self._settle()

    def _settle(self) -> None:
        """Send the result of an interrupted mission once it is over."""
        leaving = self._leaving
        if leaving is not None and leaving.end is not None:
            self._leaving = None
            self._conclude(leaving, leaving.end)

    def _conclude(self, running: Running, end: MissionEnd) -> None:
        running.calls.close()
        self._publish(end.state, end)
        self.log_info('mission', f'mission {"done" if end.success else "ended"}: {end.why}')
        if running.handle is not None:
            self._over[bytes(running.handle.goal_id.uuid)] = running, end
            running.handle.execute()

    def _execute(self, handle: ServerGoalHandle) -> MissionAction.Result:
        running, end = self._over.pop(bytes(handle.goal_id.uuid))
        if running.is_cancelled and not end.success:
            handle.canceled()
        else:
            (handle.succeed if end.success else handle.abort)()
        return MissionAction.Result(
            success=end.success,
            error_code=end.code,
            message=end.why,
            answers=list(end.state.said),
            steps=end.state.steps,
            seconds=time.monotonic() - running.began,
        )

    # ------------------------------------------------------------------ progress

    def _look(self) -> None:
        """Check the progress; called every FEEDBACK s on the thread of the node."""
        if self._coming:
            (state,), self._coming = self._coming, ()
            self.end_mission(RESTORED)
            if state is not None:
                self._begin(state, None)
        self._settle()
        self._start_next()
        running = self._running
        if running is None:
            return
        if running.is_cancelled:
            self.end_mission('cancelled', ErrorCode.CANCELED)
        elif running.end is not None:
            self.end_mission()
        elif running.handle is not None:
            state = running.run.state
            running.handle.publish_feedback(
                MissionAction.Feedback(
                    part=state.part,
                    steps=state.steps,
                    step=state.acting,
                    answer=state.said[-1] if state.said else '',
                    seconds=time.monotonic() - running.began,
                )
            )

    def _on_arm(self, message: ControlState) -> None:
        """End the mission when the arm is stopped, disarmed or taken over.

        So arming the arm or giving it back later does not resume the mission.
        """
        before, self._arm = self._arm, message.state
        if message.state not in (before, ControlState.ARMED):
            self._coming = ()  # restored, but not started yet
            self.end_mission(f'the arm may not be moved: {message.reason}', ErrorCode.STOPPED)

    def _resume_mission(self, state: MissionState | None) -> None:
        """Store the mission of a capsule for `_look` to start; called on the engine thread.

        The present mission is interrupted, so that it stores no more checkpoints and segments.
        """
        self._coming = (state,)
        running = self._running
        if running is not None:
            running.calls.interrupt(RESTORED)

    def _publish(self, state: MissionState, end: MissionEnd | None = None) -> None:
        message = MissionStateMsg(
            mission=state.words,
            running=end is None,
            success=end is not None and end.success,
            error_code=ErrorCode.NONE if end is None else end.code,
            message='' if end is None else end.why,
            part=state.part,
            steps=state.steps,
            step=state.acting if end is None else '',
            answers=list(state.said),
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._states.publish(message)
