"""The client of the memory services: one question, all segments, and their removal."""

from __future__ import annotations

from rclpy.node import Node
from rclpy.task import Future

from embodied_kv.demo.mission_client import UNKNOWN
from embodied_kv.srv import MemoryPlan, MemoryQuery, MemoryRemove

SHOWN = 100  # segments


class MemoryClient:
    """The memory client of a node; it belongs to the thread that spins the node."""

    def __init__(self, node: Node) -> None:
        self._plan = node.create_client(MemoryPlan, 'memory/plan')
        self._query = node.create_client(MemoryQuery, 'memory/query')
        self._remove = node.create_client(MemoryRemove, 'memory/remove')
        self.question = ''
        self._true: tuple[str, ...] = ()
        self._asked: list[Future] = []

    def ask(self, question: str, true: tuple[str, ...]) -> None:
        """Ask once, if the memory node is available. true: the correct answers."""
        self.question, self._true = question, true
        if self._plan.service_is_ready() and self._query.service_is_ready():
            self._asked = [
                self._plan.call_async(MemoryPlan.Request(question=question)),
                self._query.call_async(MemoryQuery.Request(segments=SHOWN)),
            ]

    def clear(self) -> None:
        """Remove all segments: they describe a scene that was replaced."""

        def remove_all(future: Future) -> None:
            for segment in future.result().segments:
                self._remove.call_async(MemoryRemove.Request(id=segment.id))

        if self.is_available:
            request = MemoryQuery.Request(segments=SHOWN)
            self._query.call_async(request).add_done_callback(remove_all)

    @property
    def is_available(self) -> bool:
        """Whether segments can be queried and removed."""
        return self._query.service_is_ready() and self._remove.service_is_ready()

    @property
    def is_over(self) -> bool:
        """Whether all responses have arrived."""
        return all(future.done() for future in self._asked)

    @property
    def line(self) -> str:
        """Return question, answer and whether it is true; '' without an answer."""
        found = self.report()
        if not found.get('answer'):
            return ''
        return (
            f'memory: {self.question} {found["answer"]}{"" if found["right"] else " (not true)"}'
        )

    def report(self) -> dict[str, object]:
        """Return the entry of report.json.

        known: text of each segment. computed: computed tokens of the prompt, mean over the layers.
        truth: the first correct answer.
        """
        if not self.question:
            return {'question': '', 'refused': 'the last scene had no task'}
        if not self._asked or not self.is_over:
            return {'question': self.question, 'refused': UNKNOWN}
        plan, query = (future.result() for future in self._asked)
        found = {
            'known': [segment.text for segment in query.segments],
            'question': self.question,
        }
        if not plan.success:
            return found | {'refused': plan.message}
        return found | {
            'answer': plan.text,
            'truth': self._true[0],
            'right': plan.text.strip() in self._true,
            'in view': list(plan.segments),
            'method': plan.method,
            'tokens': plan.tokens,
            'computed': round(sum(plan.computed) / max(1, len(plan.computed)), 1),
            'first token ms': round(plan.first_token_ms, 1),
        }
