"""The mission node: words become steps, each an instruction that the policy carries out.

Knows the action `mission`, and the thread that a mission runs on. Does not know in which order a
mission goes (`planning.mission`), nor how a robot is asked (`missions.crew`).
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
from embodied_kv.nodes.missions.calls import Calls
from embodied_kv.nodes.missions.crew import Crew
from embodied_kv.nodes.missions.params import MissionParams, can_carry_out
from embodied_kv.planning.domain import load_domain
from embodied_kv.planning.mission import Interrupted, MissionEnd, MissionPart, MissionState
from embodied_kv.planning.mission import Mission as Run
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.text import shown

FEEDBACK = 0.2  # s between two
LONGEST = 400  # letters of a mission
RESTORED = 'a capsule takes its place'
CHANGES = 16  # of the arm's state that may wait to be heard


@dataclass
class Running:
    """A mission under way, on a thread of its own once it began. end: once it is over.

    handle: of its goal; None of one that a capsule brought back.
    """

    run: Run
    calls: Calls
    handle: ServerGoalHandle | None
    began: float
    thread: threading.Thread | None = None
    end: MissionEnd | None = None

    @property
    def is_cancelled(self) -> bool:
        return self.handle is not None and self.handle.is_cancel_requested


class RobotMission:
    """Serves `mission` of one robot, one at a time, until `close`; none of it waits but `wait`.

    node: its executor, of one thread, serves the mission by its parameters. session: of the robot.
    calls, crew: made for each mission, as their types are.
    """

    def __init__(
        self,
        node: SuiteNode,
        session: RobotSession,
        calls: Callable[..., Calls] = Calls,
        crew: Callable[..., Crew] = Crew,
    ) -> None:
        self._node, self._session = node, session
        self._domain = load_domain(node.embodiment.contract.language)
        self._new_calls, self._new_crew = calls, crew
        self._running: Running | None = None
        self._leaving: Running | None = None  # interrupted, and its thread does not know it yet
        self._over: dict[bytes, Running] = {}  # whose clients are to be told
        self._coming: tuple[MissionState | None, ...] = ()  # from a capsule; None: none was on
        self._arm: int | None = None  # its state, as of ControlState; None: not heard yet
        self._part = MissionPart(lambda: self.state, self._bring_back)
        every = qos.heard(qos.STATUS, CHANGES)
        node.subscribe(ControlState, 'control/state', self._on_arm, every, always=True)
        self._instructions = node.publisher(String, 'instruction', qos.INSTRUCTION)
        self._states = node.publisher(MissionStateMsg, 'mission/state', qos.STATUS)
        self._server = ActionServer(
            node,
            MissionAction,
            'mission',
            self._execute,
            goal_callback=self._admit,
            handle_accepted_callback=self._accept,
            cancel_callback=lambda goal: CancelResponse.ACCEPT,
        )
        session.register(self._part)

    def close(self) -> None:
        """No more missions; one that is still under way ends."""
        self.end('the mission node is not active any more', ErrorCode.NOT_ACTIVE)
        self.wait()
        self._session.unregister(self._part)
        self._server.destroy()

    @property
    def state(self) -> MissionState | None:
        """Of the mission that runs."""
        running = self._running
        return None if running is None or running.end else running.run.state

    # ------------------------------------------------------------------ goals

    def _admit(self, request: MissionAction.Goal) -> GoalResponse:
        if refusal := self._refusal(request):
            self._node.log_warning('goal', f'mission refused: {refusal}')
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    def _refusal(self, request: MissionAction.Goal) -> str:
        if not self._node.active:
            return 'the mission node is not active'
        if not request.mission.strip():
            return 'it has no words'
        if len(request.mission) > LONGEST:
            return f'it has more than {LONGEST} letters'
        if not 0 <= request.step_time_limit < math.inf:
            return f'its step_time_limit is {request.step_time_limit} s'
        return ''

    def _accept(self, handle: ServerGoalHandle) -> None:
        request = handle.request
        words, limit = request.mission.strip(), request.step_time_limit
        self._begin(MissionState(words, step_time_limit=limit), handle)

    def _begin(self, state: MissionState, handle: ServerGoalHandle | None) -> None:
        self.end('another mission takes its place')
        self._instructions.publish(String())  # the arm stands while the mission looks and plans
        params = self._node.params.read(MissionParams)
        calls = self._new_calls(self._node)
        crew = self._new_crew(
            calls,
            self._session,
            self._domain,
            bool(self._node.embodiment.contract.language.planner),
            Tier(params.boundary_tier),
            state.step_time_limit or params.step_time_limit,
            on_words=lambda words: self._node.log_info('said', f'the mission says: {words}'),
            on_fault=lambda words: self._node.log_warning('mission', words),
        )
        run = Run(crew, state, rewinds=params.rewind, on_state=self._publish)
        self._running = Running(run, calls, handle, time.monotonic())
        self._start()

    def _start(self) -> None:
        """The mission that there is, where it did not begin yet and none is leaving."""
        running = self._running
        if running is None or running.thread is not None or self._leaving is not None:
            return
        state = running.run.state
        running.thread = threading.Thread(target=self._carry_out, args=[running], name='mission')
        self._node.log_info('mission', f"mission: '{shown(state.words)}'")
        self._publish(state)
        running.thread.start()

    def _carry_out(self, running: Running) -> None:
        """On its thread."""
        sight = self._session.sight
        try:
            running.calls.there(lambda: self._arm is not None, 'control/state')
            with sight.watching():
                if sight.is_open:
                    # There is a frame to ask about, and it shows what lies there now.
                    sight.now(running.calls.check, newer=True)
                running.end = running.run.run()
        except Interrupted as reason:
            running.end = MissionEnd(reason.code, str(reason), running.run.state)
        except Exception as error:  # whatever it is, the mission is over, and says so
            self._node.log_exception('a mission', error)
            why = 'failed: see the log of the node'
            running.end = MissionEnd(ErrorCode.UNKNOWN, why, running.run.state)

    def end(self, why: str = '', code: ErrorCode = ErrorCode.PREEMPTED) -> None:
        """The mission that there is ends, for this reason if it is not over.

        Its instruction ends at once; its client is told by `settle`, when its thread is over.
        """
        running, self._running = self._running, None
        if running is None:
            return
        if running.thread is None:
            running.end = MissionEnd(code, why, running.run.state)
            self._conclude(running)
            return
        running.calls.interrupt(why, code)
        running.calls.cancel()
        self._leaving = running
        self.settle()

    def settle(self) -> bool:
        """Whether the mission that was ended is over; its client is told."""
        leaving = self._leaving
        if leaving is not None and leaving.end is not None:
            self._leaving = None
            self._conclude(leaving)
        return self._leaving is None

    def wait(self) -> None:
        """Until the mission that was ended is over; its client is told."""
        if self._leaving is not None:
            self._leaving.thread.join()
            self.settle()

    def _conclude(self, running: Running) -> None:
        running.calls.close()
        end = running.end
        self._publish(end.state, end)
        self._node.log_info('mission', f'mission {"done" if end.success else "ended"}: {end.why}')
        if running.handle is not None:
            self._over[bytes(running.handle.goal_id.uuid)] = running
            running.handle.execute()

    def _execute(self, handle: ServerGoalHandle) -> MissionAction.Result:
        running = self._over.pop(bytes(handle.goal_id.uuid))
        end = running.end
        if running.is_cancelled and not end.success:
            handle.canceled()
        else:
            (handle.succeed if end.success else handle.abort)()
        return MissionAction.Result(
            success=end.success,
            error_code=end.code,
            message=end.why,
            said=list(end.state.said),
            steps=end.state.steps,
            seconds=time.monotonic() - running.began,
        )

    # ------------------------------------------------------------------ how it stands

    def look(self) -> None:
        """How it stands: every FEEDBACK s, on the node's thread."""
        if self._coming:
            (state,), self._coming = self._coming, ()
            self.end(RESTORED)
            if state is not None:
                self._begin(state, None)
        self.settle()
        self._start()
        running = self._running
        if running is None:
            return
        if running.is_cancelled:
            self.end('cancelled', ErrorCode.CANCELED)
        elif running.end is not None:
            self.end()
        elif running.handle is not None:
            self._feed_back(running)

    def _on_arm(self, message: ControlState) -> None:
        """A mission ends with the arm's being stopped, disarmed or taken over, whatever it does.

        Whoever arms it again, or gives it back, does not have it moved by what was before.
        """
        before, self._arm = self._arm, message.state
        if message.state not in (before, ControlState.ARMED):
            self.end(f'the arm may not be moved: {message.reason}', ErrorCode.STOPPED)

    def _bring_back(self, state: MissionState | None) -> None:
        """From a capsule, on the engine's thread: the node's own takes it from here.

        The one that runs does nothing more: what it marked or wrote would be of another moment.
        """
        self._coming = (state,)
        running = self._running
        if running is not None:
            running.calls.interrupt(RESTORED)

    def _feed_back(self, running: Running) -> None:
        state = running.run.state
        running.handle.publish_feedback(
            MissionAction.Feedback(
                part=state.part,
                steps=state.steps,
                step=state.acting,
                said=state.said[-1] if state.said else '',
                seconds=time.monotonic() - running.began,
            )
        )

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
            said=list(state.said),
        )
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._states.publish(message)


class Mission(SuiteNode):
    """Serves `mission`, one at a time."""

    may_wait = True
    calls: Callable[..., Calls] = Calls

    def __init__(self, **arguments: object) -> None:
        super().__init__('mission', MissionParams, **arguments)

    @property
    def autostart(self) -> bool:
        """Return False where the policy answers no questions."""
        return super().autostart and can_carry_out(self)

    def setup(self) -> None:
        self.mission = RobotMission(self, self.host.session(self.robot), calls=self.calls)
        self._release.callback(self.mission.close)
        self.every(FEEDBACK, self.mission.look)

    def stop(self) -> None:
        self.mission.end('the mission node is not active any more', ErrorCode.NOT_ACTIVE)
        self.mission.wait()

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        state = self.mission.state
        if state is None:
            return OK, 'no mission', {}
        values = {'mission': state.words, 'part': state.part, 'steps': state.steps}
        failed = sum(not tried.done for tried in state.tried)
        return (WARN if failed else OK), state.acting or 'planning', values
