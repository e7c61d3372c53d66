"""A stand-in for all other nodes of a suite, for tests of the mission node.

It answers truthfully about the state of a simulated table.
"""

import time
from itertools import islice

from rclpy.action import ActionClient, ActionServer, CancelResponse, GoalResponse
from table_robot import TableRobot

from embodied_kv.action import ExecuteInstruction
from embodied_kv.action import Mission as MissionAction
from embodied_kv.errors import ErrorCode
from embodied_kv.msg import ControlState, MemorySegment, MissionState, TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.mission import Mission
from embodied_kv.planning.mission import Outcome
from embodied_kv.srv import Ask, MemoryPlan, MemoryQuery, MemoryRemove, MemoryUpsert

NONE, STOPPED, TIMEOUT = ErrorCode.NONE, ErrorCode.STOPPED, ErrorCode.TIMEOUT


class TableSuite(TableRobot):
    """Serves language, memory and `execute_instruction` from a TableRobot.

    armed: whether goals are accepted. slow: instructions end only when they are cancelled. asked:
    all questions. mute: no answers are published. refuses: a service that answers without success.
    ends: why the arm ends each step, '' if it does not. arm: its first state, None for none.
    """

    arm = ControlState.ARMED

    def __init__(self, robot, table, mission, **how):
        super().__init__(table, mission, **how)
        self.armed, self.slow, self.mute, self.refuses, self.ends = True, False, False, '', ''
        self.asked, self.goals, self.told = [], [], []
        self._stream, self._ended = 0, {}
        self.robot, node = robot, robot.node
        self._texts = node.create_publisher(TextDelta, 'language/text', qos.TEXT)
        for kind, name, serve in (
            (Ask, 'language/ask', self._ask),
            (MemoryPlan, 'memory/plan', self._plan),
            (MemoryQuery, 'memory/query', self._query),
            (MemoryRemove, 'memory/remove', lambda *asked: self._remove(*asked)),
            (MemoryUpsert, 'memory/upsert', self._upsert),
        ):
            node.create_service(kind, name, self._served(name, serve))
        self._server = ActionServer(
            node,
            ExecuteInstruction,
            'execute_instruction',
            self._execute,
            goal_callback=lambda _: GoalResponse.ACCEPT if self.armed else GoalResponse.REJECT,
            handle_accepted_callback=self._begin,
            cancel_callback=lambda _: CancelResponse.ACCEPT,
        )
        node.create_timer(0.02, self._look_at_goals)
        self._control = node.create_publisher(ControlState, 'control/state', qos.STATUS)
        if self.arm is not None:
            self.say_arm(self.arm)
        every = qos.heard(qos.STATUS, 64)
        node.create_subscription(MissionState, 'mission/state', self.told.append, every)

    def up(self, *others, **parameters):
        """Start the mission node with other nodes, and a client of its action.

        Return the mission node.
        """
        nodes = self.robot.up(*others, Mission, **parameters)
        self.node = nodes[-1] if others else nodes
        self._client = ActionClient(self.robot.node, MissionAction, 'mission')
        assert self._client.wait_for_server(60.0)
        return self.node

    def send(self, mission='tidy up', **goal):
        """Send a goal and return its handle."""
        self.feedback = []
        future = self._client.send_goal_async(
            MissionAction.Goal(mission=mission, **goal),
            lambda message: self.feedback.append(message.feedback),
        )
        self.robot.until(future.done, show=False)
        return future.result()

    def result(self, handle):
        """Wait for the result of a goal; return its status and result."""
        return self.heard(handle.get_result_async())

    def heard(self, asked):
        """Wait for a result that was requested before; return its status and result."""
        self.robot.until(asked.done, show=False)
        return asked.result().status, asked.result().result

    def say_arm(self, state, reason=''):
        """Publish a state of the arm on `control/state`."""
        self._control.publish(ControlState(state=state, reason=reason))

    @property
    def run(self):
        """Return the mission in progress, whose state the planner of a TableRobot reads."""
        if (running := self.node._running) is None:
            raise LookupError('mission that runs')  # the mission ended after the request
        return running.run

    # ------------------------------------------------------------------ services

    def _served(self, name, serve):
        def served(request, response):
            if name == self.refuses:
                response.message, response.error_code = 'not today', ErrorCode.UNAVAILABLE
                return response
            try:
                serve(request, response)
                response.success = True
            except LookupError as error:
                response.message = f'there is no {error}'
            return response

        return served

    def _ask(self, request, response):
        self.asked.append(request.question)
        self._stream += 1
        response.stream = self._stream
        said = TextDelta(stream=self._stream, text=self.answer(request.question))
        said.finished, said.reason = True, 'eos'
        if not self.mute:
            self._texts.publish(said)

    def _plan(self, request, response):
        response.text = self.says(request.question)

    def _query(self, request, response):
        known = islice(self._memory.items(), request.segments)
        response.segments = [
            MemorySegment(id=id, text=text, step=i) for i, (id, text) in enumerate(known)
        ]

    def _remove(self, request, response):
        del self._memory[request.id]

    def _upsert(self, request, response):
        for segment in request.segments:
            drafts = [(segment.id, segment.kind, segment.text)]
            if segment.kind == 'task' and not segment.id:
                drafts = self._notes.conclude(segment.text)
            for id, kind, text in drafts:
                if kind == 'task':
                    self._memory.pop(id, None)
                self._memory[id] = text

    # ------------------------------------------------------------------ the arm

    def _begin(self, handle):
        instruction = handle.request.instruction
        self._notes.tell(instruction, 0)
        outcome = None if self.slow else Outcome(False) if self.ends else self.act(instruction)
        self.goals.append((handle, time.monotonic() + 0.05, outcome))

    def _look_at_goals(self):
        for goal in [*self.goals]:
            handle, until, outcome = goal
            over = outcome is not None and time.monotonic() >= until
            if over or handle.is_cancel_requested:
                self.goals.remove(goal)
                self._ended[bytes(handle.goal_id.uuid)] = over and outcome.done
                handle.execute()

    def _execute(self, handle):
        done = self._ended.pop(bytes(handle.goal_id.uuid))
        if handle.is_cancel_requested:
            handle.canceled()
        else:
            (handle.succeed if done else handle.abort)()
        return ExecuteInstruction.Result(
            success=done,
            message='' if done else self.ends or 'the time limit is over',
            error_code=NONE if done else STOPPED if self.ends else TIMEOUT,
        )
