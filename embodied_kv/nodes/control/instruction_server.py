"""The action `execute_instruction`: a goal is an instruction in force, until it is over.

Knows the safety, the instruction topic, and what language says. Runs on the control panel's
thread, and nothing of it waits: ROS executes an accepted goal once it is over, to say how it
ended, so that its status is `accepted` until then.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
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

EVERY = 0.1  # s between two looks at a goal, and two feedbacks
ECHOES = 16  # instructions of our own that are awaited on the topic
ASK_EVERY = 1.0  # s between two questions whether it is done


class Goal:
    """An instruction in force. code, why: of its end.

    moment: when it was accepted, on the safety's clock. seconds, time_limit: real ones.
    """

    def __init__(self, handle: ServerGoalHandle, question: str, moment: float) -> None:
        self.handle, request = handle, handle.request
        self.instruction, self.time_limit = request.instruction, request.time_limit
        self.question = request.success_question or question
        self.began, self.moment = time.monotonic(), moment
        self.observed, self.chunks, self.misses, self.subtask = math.nan, 0, 0, ''
        self.missed = 0  # periods that the loop had missed before
        self.was_seen = False  # a chunk of an observation since then was executed
        self.stamp = math.inf  # ns, of the oldest such observation
        self.denial, self.denied = '', -math.inf  # the newest answer that was not yes, and when
        self.code, self.why = ErrorCode.NONE, ''

    @property
    def seconds(self) -> float:
        """Since it was accepted."""
        return time.monotonic() - self.began

    def feedback(self, now: float) -> ExecuteInstruction.Feedback:
        """Return its progress; the age of the newest chunk grows until the next one."""
        share = self.seconds / self.time_limit if self.time_limit else math.nan
        return ExecuteInstruction.Feedback(
            subtask=self.subtask,
            progress=share,
            seconds=self.seconds,
            age=now - self.observed,
            deadline_misses=self.misses,
        )


def key(handle: ServerGoalHandle) -> bytes:
    """What tells goals apart."""
    return bytes(handle.goal_id.uuid)


class InstructionServer:
    """Serves `execute_instruction` until `close`, one goal at a time.

    node: whose executor runs it. safety: says who may move the arm; None while nobody may.
    language: what the contract says that the policy says. now: the safety's clock, s. stands: for
    how long the arm has stood still, s. standing_limit: how long it may while the policy answers
    that the instruction is not done, s; 0: without limit.
    """

    def __init__(
        self,
        node: Node,
        safety: Callable[[], SafetyStateMachine | None],
        language: Language,
        now: Callable[[], float],
        stands: Callable[[], float],
        standing_limit: float,
    ) -> None:
        self._node, self._safety, self._language, self._now = node, safety, language, now
        self._stands, self._standing_limit = stands, standing_limit
        self._loop: ControlLoop | None = None
        self._goal: Goal | None = None
        self._ended: dict[bytes, Goal] = {}  # whose clients are to be told
        self._told: deque[str] = deque(maxlen=ECHOES)
        self._asked: int | None = None  # the stream of the answer that is waited for
        self._next_question, self._words = 0.0, ''
        self._saying = 0, ''  # the newest stream of the first prompt, and its words so far
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
        self._timer = node.create_timer(EVERY, self._look)

    def watch(self, loop: ControlLoop | None) -> None:
        """Count the missed periods of this loop from now on; None while the arm cannot move."""
        self._loop = loop
        if self._goal is not None:
            self._goal.missed = self._missed() - self._goal.misses

    def _missed(self) -> int:
        loop = self._loop
        return loop.executor.counters.missed if loop is not None else 0

    def see(self, command: Command) -> None:
        """Note a command that was sent. On the control loop's thread."""
        goal = self._goal
        if goal is None:
            return
        if command.source == FRESH:
            now = self._now()
            goal.chunks, goal.observed = goal.chunks + 1, now - command.age
            goal.moment = min(goal.moment, now)  # a simulation's clock may have been set back
            if now - command.age > goal.moment:
                goal.was_seen, goal.stamp = True, min(goal.stamp, command.stamp)

    def clear(self) -> None:
        """Clear the instruction in force: the arm was stopped. From any thread."""
        self._tell('')

    def end(self) -> None:
        """The goal that there is ends."""
        self._end(ErrorCode.NOT_ACTIVE, 'the action node is cleaned up')

    def close(self) -> None:
        """No more goals."""
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
            return 'its instruction is empty'
        if not 0 <= request.time_limit < math.inf:
            return f'its time_limit is {request.time_limit} s'
        if request.success_question and not self._language.questions:
            return 'it has a success_question, but by its contract this policy answers none'
        if safety is None:
            return 'the action node is not active'
        return '' if safety.state == ARMED else safety.idle_reason(self._now())

    def _begin(self, handle: ServerGoalHandle) -> None:
        self._end(ErrorCode.PREEMPTED, 'another goal takes its place', stands=False)
        self._goal = goal = Goal(handle, self._language.success, self._now())
        goal.missed = self._missed()
        self._asked, self._next_question = None, goal.began + ASK_EVERY
        self._node.get_logger().info(f"goal: '{shown(goal.instruction)}'")
        self._tell(goal.instruction)

    def _end(self, code: ErrorCode, why: str, stands: bool = True) -> None:
        """Of the goal that there is. stands: the arm comes to rest, nothing newer is in force."""
        goal, self._goal = self._goal, None
        if goal is None:
            return
        goal.code, goal.why = code, why
        self._ended[key(goal.handle)] = goal
        if stands:
            self._stand()
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

    def _stand(self) -> None:
        if (safety := self._safety()) is not None:
            safety.set_instruction('')
        self._tell('')

    def _tell(self, instruction: str) -> None:
        self._told.append(instruction)
        self._instructions.publish(String(data=instruction))

    def _look(self) -> None:
        goal = self._goal
        if goal is None:
            return
        safety = self._safety()
        if self._loop is not None:
            goal.misses = self._missed() - goal.missed
        if goal.handle.is_cancel_requested:
            self._end(ErrorCode.CANCELED, 'cancelled')
        elif safety is None:
            self._end(ErrorCode.NOT_ACTIVE, 'the action node is not active any more')
        elif safety.state != ARMED:
            self._end(ErrorCode.STOPPED, f'the arm does not move: {safety.blocked_by}')
        elif goal.time_limit and goal.seconds >= goal.time_limit:
            self._end(ErrorCode.TIMEOUT, 'the time limit is over')
        elif self._is_stuck(goal):
            self._end(
                ErrorCode.NOT_DONE,
                f'the arm has stood still for {self._standing_limit:g} s, and '
                f"'{shown(goal.question)}' was answered with '{shown(goal.denial)}'",
            )
        else:
            goal.handle.publish_feedback(goal.feedback(self._now()))
            self._ask_if_due(goal)

    def _is_stuck(self, goal: Goal) -> bool:
        """Whether it has stood too long, and was not done while it stood."""
        stood = min(self._stands(), goal.seconds)
        was_denied = time.monotonic() - goal.denied < stood
        return was_denied and 0 < self._standing_limit <= stood

    # ------------------------------------------------------------------ what is heard

    def _on_instruction(self, message: String) -> None:
        if message.data in self._told:  # our own, come back
            self._told.remove(message.data)
            return
        goal = self._goal
        if goal is not None and message.data != goal.instruction:
            said = f"another instruction is in force: '{shown(message.data)}'"
            self._end(ErrorCode.PREEMPTED, said, stands=False)

    def _ask_if_due(self, goal: Goal) -> None:
        """Not before it was acted upon: the newest frame may be from before it until then."""
        now = time.monotonic()
        if not goal.was_seen:
            return
        if not goal.question or now < self._next_question or not self._ask.service_is_ready():
            return
        self._next_question, self._asked, self._words = now + ASK_EVERY, None, ''
        question = Ask.Request(question=goal.question)
        self._ask.call_async(question).add_done_callback(self._on_asked)

    def _on_asked(self, future: Future) -> None:
        answer = future.result()
        self._asked = answer.stream if answer is not None and answer.success else None

    def _on_text(self, message: TextDelta) -> None:
        goal = self._goal
        if goal is None:
            return
        if message.stream == self._asked:
            self._words += message.text
            # Of a frame from before, which a capsule may have brought back, no answer counts.
            if message.finished and nanoseconds(message.header.stamp) >= goal.stamp:
                if self._words.strip().lower().startswith('yes'):
                    self._end(ErrorCode.NONE, f"'{shown(goal.question)}' was answered with yes")
                else:
                    goal.denial, goal.denied = self._words.strip(), time.monotonic()
        elif self._language.prompts and message.query == self._language.prompts[0]:
            stream, words = self._saying
            words = message.text if stream != message.stream else words + message.text
            self._saying = message.stream, words
            if message.finished:
                goal.subtask = words.strip() or goal.subtask
