"""Services, answers in words and actions, for a thread that waits and may be interrupted.

Knows clients. Does not know what is asked. The node's executor answers, so it is another thread
that waits here.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from rclpy.action import ActionClient
from rclpy.action.client import ClientGoalHandle
from rclpy.task import Future

from embodied_kv.action import ExecuteInstruction
from embodied_kv.errors import ErrorCode, failure_code
from embodied_kv.msg import TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.planning.mission import Interrupted, Outcome
from embodied_kv.srv import Ask, MemoryPlan, MemoryQuery, MemoryRemove, MemoryUpsert

SERVICES = {
    'language/ask': Ask,
    'memory/plan': MemoryPlan,
    'memory/query': MemoryQuery,
    'memory/remove': MemoryRemove,
    'memory/upsert': MemoryUpsert,
}
PATIENCE = 20.0  # s for an answer, and for a service to be there
DISCOVERY = 2.0  # s in which an active service is found
AT_ONCE = 8  # questions, of a robot that has the engine for itself
TRIES = 3  # of a question whose stream gave way
KEPT = 256  # streams whose words are kept
LOOK = 0.02  # s between two looks whether it was interrupted


class ServiceRefused(Interrupted):
    """A service answered that it would not; the message says why."""


class Calls:
    """Clients of a node, until `close`. at_once: returns how many questions may be open now."""

    def __init__(self, node: SuiteNode, at_once: Callable[[], int] = lambda: AT_ONCE) -> None:
        self._node, self._at_once = node, at_once
        self._clients = {name: node.create_client(kind, name) for name, kind in SERVICES.items()}
        self._acting = ActionClient(node, ExecuteInstruction, 'execute_instruction')
        self._sent: Future | None = None  # the goal of the instruction that is told
        self._cancelling: Future | None = None  # one that is cancelled as soon as it is accepted
        self._closed = False
        self._reason, self._code = '', ErrorCode.NONE  # why calls end; '': they do not
        self._words: OrderedDict[int, str] = OrderedDict()  # of streams, whoever asked
        self._ends: dict[int, str] = {}
        self._lock = threading.Lock()
        self._texts = node.create_subscription(TextDelta, 'language/text', self._hear, qos.TEXT)

    def close(self) -> None:
        """No more calls, of a thread that is over; what `cancel` does is done."""
        self.cancel()
        self._closed = True
        if self._cancelling is None:
            self._acting.destroy()
        self._node.destroy_subscription(self._texts)
        for client in self._clients.values():
            self._node.destroy_client(client)

    def cancel(self) -> None:
        """An instruction that is still in force ends, and the arm comes to rest."""
        sent, self._sent = self._sent, None
        if sent is None:
            return
        self._cancelling = sent
        if sent.done():
            self._cancel(sent)
        else:
            sent.add_done_callback(self._cancel)  # where it is accepted only later

    def interrupt(self, reason: str, code: ErrorCode = ErrorCode.PREEMPTED) -> None:
        """End all calls, those under way and later ones; the reason '' permits calls again."""
        self._code, self._reason = code, reason

    # ------------------------------------------------------------------ on the waiting thread

    def call(self, name: str, **fields: object) -> object:
        """A service's response. Raises Interrupted, also where the service is not there."""
        return self._answered(name, self._send(name, **fields))

    def ask(self, questions: Sequence[str]) -> list[str]:
        """What the policy answers on the newest frame.

        Raises Interrupted, also where a question's stream gave way each time: no answer is no
        sign of what is not there.
        """
        found: dict[str, str] = {}
        for _ in range(TRIES):
            left = [q for q in dict.fromkeys(questions) if q not in found]
            while left:
                count = self._at_once()
                asked, left = left[:count], left[count:]
                for question, stream in self._streams(asked).items():
                    answer = self._said(stream)
                    if answer is not None:
                        found[question] = answer
        if lost := [question for question in questions if question not in found]:
            why = f'{TRIES} times a stream gave way before it had answered: {", ".join(lost)}'
            remedy = 'raise engine.streams or engine.kv_budget_mib'
            raise Interrupted(f'{why} ({remedy})', ErrorCode.NO_ROOM)
        return [found[question] for question in questions]

    def act(self, instruction: str, time_limit: float) -> Outcome:
        """Until the policy says that it is done, stands without being done, or time is up.

        time_limit: s, above 0. Raises Interrupted where it ends otherwise.
        """
        self.there(self._acting.server_is_ready, 'execute_instruction')
        goal = ExecuteInstruction.Goal(instruction=instruction, time_limit=time_limit)
        handle = self._wait(self._on_node(lambda: self._send_goal(goal)))
        if not handle.accepted:
            self._sent = None
            raise Interrupted(
                'execute_instruction was rejected: arm the arm, and give the mission again; the '
                'log of the action node has the reason',
                ErrorCode.NOT_ARMED,
            )
        ended = self._on_node(lambda: self._result(handle))
        result = self._wait(ended, time_limit + PATIENCE).result
        self._sent = None
        code = ErrorCode.NONE if result.success else failure_code(result.error_code)
        if code not in (ErrorCode.NONE, ErrorCode.TIMEOUT, ErrorCode.NOT_DONE):
            raise Interrupted(result.message or 'the action node did not say why', code)
        return Outcome(result.success, result.message)

    def _streams(self, questions: Sequence[str]) -> dict[str, int]:
        """The stream that answers each of them. Raises ServiceRefused."""
        sent = {q: self._send('language/ask', question=q) for q in questions}
        return {q: self._answered('language/ask', future).stream for q, future in sent.items()}

    def _said(self, stream: int) -> str | None:
        """The words of a stream that ended by itself; None of one that was cut off."""
        until = time.monotonic() + PATIENCE
        while stream not in self._ends:
            self.check()
            if time.monotonic() > until:
                raise Interrupted(
                    'language does not answer: is it active, do cameras send?',
                    ErrorCode.UNAVAILABLE,
                )
            time.sleep(LOOK)
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
        """Sends on the node's thread: elsewhere, an answer may come before it is waited for."""
        return self._wait(self._node.executor.create_task(send))

    def _answered(self, name: str, future: Future) -> object:
        response = self._wait(future)
        if not response.success:
            code = failure_code(response.error_code)
            raise ServiceRefused(f'{name}: {response.message}', code)
        return response

    def _wait(self, future: Future, patience: float = PATIENCE) -> object:
        until = time.monotonic() + patience
        while not future.done():
            self.check()
            if time.monotonic() > until:
                raise Interrupted('a node does not answer', ErrorCode.UNAVAILABLE)
            time.sleep(LOOK)
        return future.result()

    def has(self, name: str, patience: float = DISCOVERY) -> bool:
        """Return whether a service is there, after at most `patience` s of discovery."""
        until = time.monotonic() + patience
        while not self._clients[name].service_is_ready() and time.monotonic() < until:
            self.rest()
        return self._clients[name].service_is_ready()

    def there(self, is_ready: Callable[[], bool], name: str) -> None:
        """Waits for what has this name. Raises Interrupted, also where it does not come."""
        until = time.monotonic() + PATIENCE
        while not is_ready():
            self.check()
            if time.monotonic() > until:
                raise Interrupted(
                    f'{name} is not there: is its node active?', ErrorCode.UNAVAILABLE
                )
            time.sleep(LOOK)

    def rest(self) -> None:
        """For a moment. Raises Interrupted."""
        self.check()
        time.sleep(LOOK)

    def check(self) -> None:
        """Raises Interrupted once it was interrupted."""
        if self._reason:
            raise Interrupted(self._reason, self._code)

    # ------------------------------------------------------------------ on the node's thread

    def _send_goal(self, goal: ExecuteInstruction.Goal) -> Future:
        """Not once it was interrupted: nobody waits for its end then, nor for this future."""
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
