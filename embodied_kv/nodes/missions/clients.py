"""The clients by which a mission uses services, language and actions, with interruptible waits.

The thread of the mission waits here, while the executor of the node receives the responses.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from rclpy.action import ActionClient
from rclpy.action.client import ClientGoalHandle
from rclpy.task import Future

from embodied_kv.action import ExecuteInstruction
from embodied_kv.errors import ErrorCode, failure_code
from embodied_kv.msg import TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.planning.mission import MissionInterruptedError, Outcome
from embodied_kv.srv import Ask, MemoryPlan, MemoryQuery, MemoryRemove, MemoryUpsert

if TYPE_CHECKING:
    from rclpy.executors import Executor

SERVICES = {
    'language/ask': Ask,
    'memory/plan': MemoryPlan,
    'memory/query': MemoryQuery,
    'memory/remove': MemoryRemove,
    'memory/upsert': MemoryUpsert,
}
PATIENCE = 20.0  # s to wait for a response, and for a service to appear
DISCOVERY = 2.0  # s within which an active service is discovered
AT_ONCE = 8  # maximum number of open questions to a local engine
TRIES = 3  # attempts at a question, because its stream may be evicted
KEPT = 256  # streams whose text is kept
POLL = 0.02  # s between two checks for an interrupt


class ServiceRefusedError(MissionInterruptedError):
    """A service refused a request; the message has its reason."""


class MissionClients:
    """Clients of a node, until `close`; at most `at_once` questions are open."""

    def __init__(self, node: SuiteNode, at_once: int = AT_ONCE) -> None:
        self._node, self._at_once = node, at_once
        self._clients = {name: node.create_client(kind, name) for name, kind in SERVICES.items()}
        self._acting = ActionClient(node, ExecuteInstruction, 'execute_instruction')
        self._sent: Future | None = None  # the goal in progress
        self._cancelling: Future | None = None  # to be cancelled as soon as it is accepted
        self._closed = False
        self._reason, self._code = '', ErrorCode.NONE  # of an interrupt; '': none
        self._words: OrderedDict[int, str] = OrderedDict()  # by stream, of any client
        self._ends: dict[int, str] = {}
        self._lock = threading.Lock()
        self._texts = node.create_subscription(TextDelta, 'language/text', self._hear, qos.TEXT)

    def close(self) -> None:
        """Cancel, and destroy the clients; the thread of the mission has ended."""
        self.cancel()
        self._closed = True
        if self._cancelling is None:
            self._acting.destroy()
        self._node.destroy_subscription(self._texts)
        for client in self._clients.values():
            self._node.destroy_client(client)

    def cancel(self) -> None:
        """End the instruction in force, so that the arm comes to rest."""
        sent, self._sent = self._sent, None
        if sent is None:
            return
        self._cancelling = sent
        if sent.done():
            self._cancel(sent)
        else:
            sent.add_done_callback(self._cancel)  # it may be accepted later

    def interrupt(self, reason: str, code: ErrorCode = ErrorCode.PREEMPTED) -> None:
        """Interrupt present and later calls; the reason '' permits calls again."""
        self._code, self._reason = code, reason

    # ------------------------------------------------------------------ on the waiting thread

    def call(self, name: str, **fields: object) -> Any:
        """Return the response of a service. Raises MissionInterruptedError if there is none."""
        return self._answered(name, self._send(name, **fields))

    def ask(self, questions: Sequence[str]) -> list[str]:
        """Return the answers of the policy about the newest frame.

        Raises MissionInterruptedError, also if the stream of a question is evicted each time: a
        missing answer must not be taken for an absent object.
        """
        found: dict[str, str] = {}
        for _ in range(TRIES):
            left = [q for q in dict.fromkeys(questions) if q not in found]
            while left:
                asked, left = left[: self._at_once], left[self._at_once :]
                for question, stream in self._streams(asked).items():
                    answer = self._said(stream)
                    if answer is not None:
                        found[question] = answer
        if lost := [question for question in questions if question not in found]:
            why = f'{TRIES} times a stream was evicted before its answer: {", ".join(lost)}'
            remedy = 'raise engine.streams or engine.kv_budget_mib'
            raise MissionInterruptedError(f'{why} ({remedy})', ErrorCode.NO_ROOM)
        return [found[question] for question in questions]

    def act(self, instruction: str, time_limit: float) -> Outcome:
        """Carry out an instruction for at most `time_limit` s (above 0), and return the outcome.

        Raises MissionInterruptedError unless the goal ends as done, TIMEOUT or NOT_DONE.
        """
        self.there(self._acting.server_is_ready, 'execute_instruction')
        goal = ExecuteInstruction.Goal(instruction=instruction, time_limit=time_limit)
        handle = self._wait(self._on_node(lambda: self._send_goal(goal)))
        if not handle.accepted:
            self._sent = None
            raise MissionInterruptedError(
                'execute_instruction was rejected: arm the arm, and give the mission again; the '
                'log of the action node has the reason',
                ErrorCode.NOT_ARMED,
            )
        ended = self._on_node(lambda: self._result(handle))
        result = self._wait(ended, time_limit + PATIENCE).result
        self._sent = None
        code = ErrorCode.NONE if result.success else failure_code(result.error_code)
        if code not in (ErrorCode.NONE, ErrorCode.TIMEOUT, ErrorCode.NOT_DONE):
            raise MissionInterruptedError(result.message or 'the action node gave no reason', code)
        return Outcome(result.success, result.message)

    def _streams(self, questions: Sequence[str]) -> dict[str, int]:
        """Ask questions, and return the stream of each answer. Raises ServiceRefusedError.

        A question for which there is no room, for example because an answer to another client is
        not complete, is asked again for PATIENCE.
        """
        found: dict[str, int] = {}
        until = time.monotonic() + PATIENCE
        while left := [question for question in questions if question not in found]:
            sent = {q: self._send('language/ask', question=q) for q in left}
            for question, future in sent.items():
                try:
                    found[question] = self._answered('language/ask', future).stream
                except ServiceRefusedError as error:
                    if error.code != ErrorCode.NO_ROOM or time.monotonic() > until:
                        raise
            if len(found) < len(questions):
                time.sleep(POLL)
        return found

    def _said(self, stream: int) -> str | None:
        """Wait for the end of a stream, and return its text; None if it was cut off."""
        silent = 'language does not answer: is it active, do cameras send?'
        self._poll(lambda: stream in self._ends, silent, PATIENCE)
        with self._lock:
            whole = self._ends.pop(stream) in ('eos', 'length')
            words = self._words.pop(stream, '')
        return words.strip() if whole else None

    def _send(self, name: str, **fields: object) -> Future:
        self.check()
        client = self._clients[name]
        self.there(client.service_is_ready, name)
        return client.call_async(SERVICES[name].Request(**fields))

    def _on_node(self, send: Callable[[], Future]) -> Future:
        """Send on the thread of the node, so that no response precedes the wait for it."""
        executor = cast('Executor', self._node.executor)  # which receives the responses
        return self._wait(executor.create_task(send))

    def _answered(self, name: str, future: Future) -> Any:
        response = self._wait(future)
        if not response.success:
            code = failure_code(response.error_code)
            raise ServiceRefusedError(f'{name}: {response.message}', code)
        return response

    def _wait(self, future: Future, patience: float = PATIENCE) -> Any:
        self._poll(future.done, 'a node does not answer', patience)
        return future.result()

    def has(self, name: str) -> bool:
        """Return whether a service exists, after at most DISCOVERY s."""
        is_ready, until = self._clients[name].service_is_ready, time.monotonic() + DISCOVERY
        while not is_ready() and time.monotonic() < until:
            self.check()
            time.sleep(POLL)
        return is_ready()

    def there(self, is_ready: Callable[[], bool], name: str) -> None:
        """Wait until `is_ready`. Raises MissionInterruptedError at an interrupt or PATIENCE."""
        self._poll(is_ready, f'{name} is not there: is its node active?', PATIENCE)

    def _poll(self, is_ready: Callable[[], bool], failure: str, patience: float) -> None:
        until = time.monotonic() + patience
        while not is_ready():
            self.check()
            if time.monotonic() > until:
                raise MissionInterruptedError(failure, ErrorCode.UNAVAILABLE)
            time.sleep(POLL)

    def check(self) -> None:
        """Raise MissionInterruptedError after an interrupt."""
        if self._reason:
            raise MissionInterruptedError(self._reason, self._code)

    # ------------------------------------------------------------------ on the node's thread

    def _send_goal(self, goal: ExecuteInstruction.Goal) -> Future:
        """Send a goal, unless an interrupt has ended the wait for it."""
        if self._reason:
            return Future()
        self._sent = self._acting.send_goal_async(goal)
        return self._sent

    def _result(self, handle: ClientGoalHandle) -> Future:
        return Future() if self._reason else handle.get_result_async()

    def _cancel(self, sent: Future) -> None:
        handle, self._cancelling = sent.result(), None
        if handle is not None and handle.accepted:
            handle.cancel_goal_async()
        if self._closed:
            self._acting.destroy()

    def _hear(self, message: TextDelta) -> None:
        with self._lock:
            stream = message.stream
            self._words[stream] = self._words.pop(stream, '') + message.text
            if message.finished:
                self._ends[stream] = message.reason
            while len(self._words) > KEPT:
                oldest, _ = self._words.popitem(last=False)
                self._ends.pop(oldest, None)
