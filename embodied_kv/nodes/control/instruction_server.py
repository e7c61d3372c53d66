"""Serve the action `execute_instruction`: a goal is an instruction in force until it ends.

All callbacks run on the thread of the control services and never wait. Therefore the execute
callback of a goal only runs at its end, to return the result, and the status of the goal is
`accepted` until then.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String

from embodied_kv.action import ExecuteInstruction
from embodied_kv.control.command import FRESH, Command
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.safety_state_machine import ARMED, SafetyStateMachine
from embodied_kv.errors import ErrorCode
from embodied_kv.msg import TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.conversions import nanoseconds
from embodied_kv.robots.contract import Language
from embodied_kv.srv import Ask
from embodied_kv.text import shown

CHECK_PERIOD = 0.1  # s between two checks of a goal, and between two feedbacks
ECHOES = 16  # maximum number of this node's instructions that the topic has yet to return
ASK_PERIOD = 1.0  # s between two success questions
ANSWER = 30.0  # s after which a question without an answer is asked again


class Goal:
    """A goal, and the progress of its instruction.

    `moment` is the time of acceptance on the clock of the control loop. `seconds` and `time_limit`
    are steady time. `code` and `why` state the outcome once the goal has ended.

    Args:
        handle: The goal handle.
        question: The success question of the contract; that of the goal has priority.
        moment: The present moment.
        stops: The number of stops so far.
    """

    def __init__(self, handle: ServerGoalHandle, question: str, moment: float, stops: int) -> None:
        self.handle, request = handle, handle.request
        self.instruction, self.time_limit = request.instruction, request.time_limit
        self.question = request.success_question or question
        self.began, self.moment, self.stops = time.monotonic(), moment, stops
        self.observed, self.chunks, self.misses, self.subtask = math.nan, 0, 0, ''
        self.missed = 0  # periods that the loop had missed before this goal
        self.was_seen = False  # whether a chunk observed after acceptance was executed
        self.stamp = math.inf  # stamp (ns) of the oldest observation of such a chunk
        self.denial, self.denied = '', -math.inf  # the newest answer other than yes, and its time
        self.code, self.why = ErrorCode.NONE, ''

    @property
    def seconds(self) -> float:
        """Return the time (s) since the goal was accepted."""
        return time.monotonic() - self.began

    def feedback(self, now: float) -> ExecuteInstruction.Feedback:
        """Return the feedback; the age of the newest chunk grows until the next one."""
        share = self.seconds / self.time_limit if self.time_limit else math.nan
        return ExecuteInstruction.Feedback(
            subtask=self.subtask,
            progress=share,
            seconds=self.seconds,
            age=now - self.observed,
            deadline_misses=self.misses,
        )


def key(handle: ServerGoalHandle) -> bytes:
    """Return the identifier of a goal."""
    return bytes(handle.goal_id.uuid)


class InstructionServer:
    """Action server of `execute_instruction` until `close`, with one goal at a time.

    Args:
        node: The node of the control services.
        safety: Returns the safety state machine; None while the action node is not active.
        language: The section `language` of the contract.
        now: Returns the moment (s) on the clock of the control loop.
        stands: Returns for how long (s) the arm has stood still.
        standstill_timeout: Longest time (s) for which the arm may stand still while the policy
            answers that the instruction is not done; 0: unlimited.
    """

    def __init__(
        self,
        node: Node,
        safety: Callable[[], SafetyStateMachine | None],
        language: Language,
        now: Callable[[], float],
        stands: Callable[[], float],
        standstill_timeout: float,
    ) -> None:
        self._node, self._safety, self._language, self._now = node, safety, language, now
        self._stands, self._standstill_timeout = stands, standstill_timeout
        self._loop: ControlLoop | None = None
        self._goal: Goal | None = None
        self._ended: dict[bytes, Goal] = {}  # ended goals whose result is not returned yet
        self._expected: deque[str] = deque(maxlen=ECHOES)
        self._asked: int | None = None  # stream of the expected answer
        self._next_question = self._asked_until = 0.0  # until then, an answer is awaited
        self._words: dict[int, str] = {}  # answers to the success question so far, by stream
        self._stamps: dict[int, int] = {}  # stamps (ns) of the frames of complete ones
        self._first_prompt = 0, ''  # newest stream of the first prompt, and its text so far
        self._instructions = node.create_publisher(String, 'instruction', qos.INSTRUCTION)
        node.create_subscription(String, 'instruction', self._on_instruction, qos.INSTRUCTION)
        node.create_subscription(TextDelta, 'language/text', self._on_text, qos.TEXT)
        self._ask = node.create_client(Ask, 'language/ask')
        self._server = ActionServer(
            node,
            ExecuteInstruction,
            'execute_instruction',
            self._execute,
            goal_callback=self._admit,
            handle_accepted_callback=self._begin,
            cancel_callback=lambda goal: CancelResponse.ACCEPT,
        )
        steady = Clock(clock_type=ClockType.STEADY_TIME)  # runs on if the ROS clock is set back
        self._timer = node.create_timer(CHECK_PERIOD, self._check_goal, clock=steady)

    def attach(self, loop: ControlLoop | None) -> None:
        """Count the missed periods of this loop from now on; None if the node is not active."""
        self._loop = loop
        if self._goal is not None:
            self._goal.missed = self._missed() - self._goal.misses

    def _missed(self) -> int:
        loop = self._loop
        return loop.executor.counters.missed if loop is not None else 0

    def note_command(self, command: Command) -> None:
        """Note a command that was sent. Called by the thread of the control loop."""
        goal = self._goal
        if goal is None:
            return
        if command.source == FRESH:
            now = self._now()
            goal.chunks, goal.observed = goal.chunks + 1, now - command.age
            goal.moment = min(goal.moment, now)  # the clock of a simulation may go back
            if now - command.age > goal.moment and command.stamp is not None:
                goal.was_seen, goal.stamp = True, min(goal.stamp, command.stamp)

    def clear(self) -> None:
        """Clear the instruction in force after a stop; called from any thread."""
        self._publish('')

    def end(self) -> None:
        """End the present goal because the node is cleaned up."""
        self._end(ErrorCode.NOT_ACTIVE, 'the action node is cleaned up')

    def close(self) -> None:
        """Destroy the action server."""
        self._server.destroy()

    # ------------------------------------------------------------------ goals

    def _admit(self, request: ExecuteInstruction.Goal) -> GoalResponse:
        if refusal := self._refusal(request):
            self._node.get_logger().warning(f'goal refused: {refusal}')
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    def _refusal(self, request: ExecuteInstruction.Goal) -> str:
        safety = self._safety()
        if not request.instruction.strip():
            return 'instruction must not be empty'
        if not 0 <= request.time_limit < math.inf:
            return f'time_limit must be finite and >= 0 s (got {request.time_limit})'
        if request.success_question and not self._language.questions:
            return 'success_question must be empty, because the contract has no language.questions'
        if safety is None:
            return 'the action node is not active'
        return '' if safety.state == ARMED else safety.idle_reason(self._now())

    def _begin(self, handle: ServerGoalHandle) -> None:
        self._end(ErrorCode.PREEMPTED, 'replaced by another goal', stands=False)
        safety = self._safety()
        stops = safety.stops if safety is not None else 0
        self._goal = goal = Goal(handle, self._language.success, self._now(), stops)
        goal.missed = self._missed()
        self._forget_answers()
        self._next_question = goal.began + ASK_PERIOD
        self._node.get_logger().info(f"goal: '{shown(goal.instruction)}'")
        self._publish(goal.instruction)

    def _end(self, code: ErrorCode, why: str, stands: bool = True) -> None:
        """End the present goal. stands: whether to end its instruction, so that the arm stands."""
        goal, self._goal = self._goal, None
        if goal is None:
            return
        goal.code, goal.why = code, why
        self._ended[key(goal.handle)] = goal
        if stands:
            self._bring_to_rest()
        goal.handle.execute()

    def _execute(self, handle: ServerGoalHandle) -> ExecuteInstruction.Result:
        goal = self._ended.pop(key(handle))
        if goal.code == ErrorCode.NONE:
            handle.succeed()
        elif goal.code == ErrorCode.CANCELED:
            handle.canceled()
        else:
            handle.abort()
        return ExecuteInstruction.Result(
            success=goal.code == ErrorCode.NONE,
            error_code=goal.code,
            message=goal.why,
            seconds=goal.seconds,
            chunks=goal.chunks,
            deadline_misses=goal.misses,
        )

    def _bring_to_rest(self) -> None:
        if (safety := self._safety()) is not None:
            safety.set_instruction('', self._now())
        self._publish('')

    def _publish(self, instruction: str) -> None:
        self._expected.append(instruction)
        self._instructions.publish(String(data=instruction))

    def _check_goal(self) -> None:
        goal = self._goal
        if goal is None:
            return
        safety = self._safety()
        if self._loop is not None:
            goal.misses = self._missed() - goal.missed
        if goal.handle.is_cancel_requested:
            self._end(ErrorCode.CANCELED, 'cancelled')
        elif safety is None:
            self._end(ErrorCode.NOT_ACTIVE, 'the action node is no longer active')
        elif safety.state != ARMED:
            self._end(ErrorCode.STOPPED, f'the arm does not move: {safety.blocked_by}')
        elif safety.stops != goal.stops:
            self._end(ErrorCode.STOPPED, 'the arm was stopped, reset and armed')
        elif goal.time_limit and goal.seconds >= goal.time_limit:
            self._end(ErrorCode.TIMEOUT, 'the time limit has passed')
        elif self._is_stuck(goal):
            self._end(
                ErrorCode.NOT_DONE,
                f'the arm has stood still for {self._standstill_timeout:g} s, and '
                f"'{shown(goal.question)}' was answered with '{shown(goal.denial)}'",
            )
        else:
            goal.handle.publish_feedback(goal.feedback(self._now()))
            self._ask_if_due(goal)

    def _is_stuck(self, goal: Goal) -> bool:
        """Return whether the arm stood still too long while the answers were not yes."""
        stood = min(self._stands(), goal.seconds)
        was_denied = time.monotonic() - goal.denied < stood
        return was_denied and 0 < self._standstill_timeout <= stood

    # ------------------------------------------------------------------ topics

    def _on_instruction(self, message: String) -> None:
        if message.data in self._expected:  # published by this node
            self._expected.remove(message.data)
            return
        goal = self._goal
        if goal is not None and message.data != goal.instruction:
            why = f"another instruction is in force: '{shown(message.data)}'"
            self._end(ErrorCode.PREEMPTED, why, stands=False)

    def _ask_if_due(self, goal: Goal) -> None:
        """Ask the success question every ASK_PERIOD, once a chunk observed since was executed.

        One question is open at a time: an answer may take longer than ASK_PERIOD.
        """
        now = time.monotonic()
        if not goal.was_seen or now < self._asked_until:
            return
        if not goal.question or now < self._next_question or not self._ask.service_is_ready():
            return
        self._forget_answers()
        self._next_question, self._asked_until = now + ASK_PERIOD, now + ANSWER
        question = Ask.Request(question=goal.question)
        asked = self._ask.call_async(question)
        asked.add_done_callback(lambda future: self._on_asked(goal, future))

    def _forget_answers(self) -> None:
        self._asked, self._asked_until = None, 0.0
        self._words.clear()
        self._stamps.clear()

    def _on_asked(self, goal: Goal, future: Future) -> None:
        answer = future.result()
        if goal is not self._goal:
            return
        if answer is None or not answer.success:
            self._asked_until = 0.0
            return
        self._asked = answer.stream
        self._judge(goal)  # its text may have arrived before

    def _judge(self, goal: Goal) -> None:
        """End the goal if the answer is complete and yes."""
        if self._asked not in self._stamps:
            return
        words, stamp = self._words[self._asked].strip(), self._stamps[self._asked]
        self._forget_answers()
        if stamp < goal.stamp:
            return  # about an earlier frame, which a capsule may restore
        if words.lower().startswith('yes'):
            self._end(ErrorCode.NONE, f"'{shown(goal.question)}' was answered with yes")
        else:
            goal.denial, goal.denied = words, time.monotonic()

    def _on_text(self, message: TextDelta) -> None:
        goal = self._goal
        if goal is None:
            return
        if message.stream == self._asked or (goal.question and message.query == goal.question):
            stream = message.stream
            self._words[stream] = self._words.get(stream, '') + message.text
            if message.finished:
                self._stamps[stream] = nanoseconds(message.header.stamp)
                self._judge(goal)
        if self._language.prompts and message.query == self._language.prompts[0]:
            stream, words = self._first_prompt
            words = message.text if stream != message.stream else words + message.text
            self._first_prompt = message.stream, words
            if message.finished:
                goal.subtask = words.strip() or goal.subtask
