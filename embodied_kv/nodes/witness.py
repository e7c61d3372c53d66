"""Watches a suite from outside, by its topics and services only, and counts.

Knows messages and numbers. Does not know the engine, processes or pictures. One thread's.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.srv import GetParameters
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from embodied_kv.engine.timeline import FRESH, SOURCES
from embodied_kv.msg import ActionChunk, KvHandle, TextDelta
from embodied_kv.nodes import qos
from embodied_kv.nodes.storyboard import Card
from embodied_kv.srv import Ask, KvStats

CAMERAS = ('front', 'wrist')
KEPT = 30  # stamps whose images and joints are remembered
WINDOW = 3.0  # s that the rates of this moment look back


@dataclass
class Words:
    """A stream, as its deltas told it. reason: '' while it lives."""

    query: str
    text: str = ''
    tokens: int = 0
    reason: str = ''


class Witness(Node):
    """Hears what the suite and the robot publish; also tells, asks and polls.

    Counts from `began` on: the moment of the first fresh command, s on the steady clock.
    """

    def __init__(self, namespace: str) -> None:
        super().__init__('witness', namespace=namespace)
        self.began: float | None = None
        self.commands: list[ActionChunk] = []
        self.frames = self.tokens = 0
        self.streams: dict[int, Words] = {}
        self.newest_words = Words('')
        self.instructions: list[tuple[float, str]] = []
        self.question = ''
        self.answer: Ask.Response | None = None
        self.weights = 'unknown'
        self.stats = KvStats.Response()
        self.diagnostics: dict[str, dict[str, str]] = {}  # node -> its newest values
        self._seen: dict[str, dict[int, np.ndarray]] = {name: {} for name in (*CAMERAS, 'joints')}
        self._recent: dict[str, deque[tuple[float, int]]] = {'frames': deque(), 'tokens': deque()}
        for name in CAMERAS:
            self._subscribe(Image, f'camera/{name}/image', self._on_image(name), qos.SENSOR)
        self._subscribe(JointState, 'joint_states', self._on_joints, qos.JOINTS)
        self._subscribe(KvHandle, 'kv_handle', self._on_handle, qos.HANDLE)
        self._subscribe(ActionChunk, 'action_chunk', self._on_command, 10)
        self._subscribe(TextDelta, 'text', self._on_text, qos.TEXT)
        self._subscribe(DiagnosticArray, '/diagnostics', self._on_diagnostics, 10)
        self._instruction = self.create_publisher(String, 'instruction', qos.INSTRUCTION)
        self._ask = self.create_client(Ask, 'ask')
        self._stats = self.create_client(KvStats, 'kv/stats')
        self._parameters = self.create_client(GetParameters, 'perception/get_parameters')

    def _subscribe(self, kind: type, topic: str, callback, profile) -> None:
        self.create_subscription(kind, topic, callback, profile)

    # ------------------------------------------------------------------ doing

    @property
    def seconds(self) -> float:
        """Since the first fresh command; 0 before."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    def tell(self, instruction: str) -> None:
        """Publish an instruction."""
        self.instructions.append((round(self.seconds, 2), instruction))
        self._instruction.publish(String(data=instruction))

    def ask(self, question: str) -> None:
        """Ask about the newest frame; `answer` is what the service said."""

        def answered(future) -> None:
            self.answer = future.result()

        self.question = question
        request = Ask.Request(question=question)
        self._ask.call_async(request).add_done_callback(answered)

    def poll(self) -> None:
        """Ask for the cache's statistics and for the weights' name: `stats`, `weights`."""

        def counted(future) -> None:
            self.stats = future.result()

        def named(future) -> None:
            preset, checkpoint = (value.string_value for value in future.result().values)
            self.weights = checkpoint or f'bundled {preset}'

        if self._stats.service_is_ready():
            self._stats.call_async(KvStats.Request()).add_done_callback(counted)
        if self.weights == 'unknown' and self._parameters.service_is_ready():
            request = GetParameters.Request(names=['preset', 'checkpoint'])
            self._parameters.call_async(request).add_done_callback(named)

    # ------------------------------------------------------------------ hearing

    def _on_image(self, name: str):
        def heard(message: Image) -> None:
            shape = (message.height, message.width, 3)
            self._remember(name, message, np.frombuffer(message.data, np.uint8).reshape(shape))

        return heard

    def _on_joints(self, message: JointState) -> None:
        self._remember('joints', message, np.array(message.position))

    def _remember(self, name: str, message: Image | JointState, value: np.ndarray) -> None:
        seen = self._seen[name]
        seen[_nanoseconds(message)] = value
        while len(seen) > KEPT:
            del seen[next(iter(seen))]

    def _on_handle(self, _: KvHandle) -> None:
        if self.began is not None:
            self.frames += 1
            self._recent['frames'].append((time.monotonic(), 1))

    def _on_command(self, message: ActionChunk) -> None:
        if self.began is None and SOURCES[message.source] == FRESH:
            self.began = time.monotonic()
        if self.began is not None:
            self.commands.append(message)

    def _on_text(self, message: TextDelta) -> None:
        words = self.streams.setdefault(message.stream, Words(message.query))
        if self.began is not None:
            self.tokens += message.tokens - words.tokens
            self._recent['tokens'].append((time.monotonic(), message.tokens - words.tokens))
        words.text += message.text
        words.tokens, words.reason = message.tokens, message.reason
        if words.text.strip():
            self.newest_words = words

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            space, _, node = status.name.rpartition('/')
            if space == self.get_namespace().strip('/'):
                values = {value.key: value.value for value in status.values}
                self.diagnostics[node] = {'says': status.message, **values}

    # ------------------------------------------------------------------ telling

    def rate(self, what: str) -> float:
        """'frames' or 'tokens' per second, lately."""
        recent, now = self._recent[what], time.monotonic()
        while recent and recent[0][0] < now - WINDOW:
            recent.popleft()
        return sum(count for _, count in recent) / max(min(WINDOW, self.seconds), 0.5)

    @property
    def missed(self) -> int:
        """Periods whose deadline was not met."""
        return sum(not command.deadline_met for command in self.commands)

    def card(self) -> Card | None:
        """The newest command's frame, None if that was not seen or the command is not fresh."""
        command = self.commands[-1]
        stamp = _nanoseconds(command)
        frame = {name: seen.get(stamp) for name, seen in self._seen.items()}
        if SOURCES[command.source] != FRESH or any(value is None for value in frame.values()):
            return None
        actions = np.array(command.values).reshape(command.horizon, -1)[command.first :]
        words = self.newest_words
        return Card(
            seconds=self.seconds,
            front=frame['front'],
            wrist=frame['wrist'],
            path=np.vstack([frame['joints'], actions]),
            instruction=self.instructions[-1][1] if self.instructions else '',
            said=f'{words.query} {words.text}',
            note=f'frame {command.sequence}\nprefill {command.prefill_ms:.1f} ms\n'
            f'denoise {command.denoise_ms:.1f} ms\n{command.steps} Euler steps\n'
            f'{self.stats.streams} streams',
        )

    def report(self) -> dict[str, object]:
        """Counts, rates per second, durations in ms, and what was said."""
        seconds = max(self.seconds, 1e-9)
        answer = self.answer
        answered = self.streams.get(answer.stream if answer else 0, Words(self.question))
        fresh = [c for c in self.commands if SOURCES[c.source] == FRESH]
        ended = Counter(words.reason or 'alive' for words in self.streams.values())
        return {
            'weights': self.weights,
            'seconds': round(seconds, 2),
            'counts': {
                'frames': self.frames,
                'commands': len(self.commands),
                **Counter(SOURCES[c.source] for c in self.commands),
                'deadlines missed': self.missed,
                'streams': len(self.streams),
                'tokens': self.tokens,
            },
            'per second': {
                'frames': round(self.frames / seconds, 2),
                'commands': round(len(self.commands) / seconds, 2),
                'tokens': round(self.tokens / seconds, 2),
            },
            'ms': {
                'prefill': percentiles(c.prefill_ms for c in fresh),
                'denoise': percentiles(c.denoise_ms for c in fresh),
                'age': percentiles(c.age * 1e3 for c in fresh),
            },
            'euler steps': round(float(np.mean([c.steps for c in fresh] or [0])), 2),
            'streams ended': dict(ended),
            'instructions': [{'at': at, 'text': text} for at, text in self.instructions],
            'question': {
                **asdict(answered),
                'service': answer.message if answer else 'no answer from the service',
            },
            'words': [asdict(words) for words in list(self.streams.values())[-20:]],
            'kv': _fields(self.stats),
            'diagnostics': self.diagnostics,
        }


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """p50, p90, p99 and max; nothing where there are no values."""
    values = list(values)
    if not values:
        return {}
    names = {'p50': 50, 'p90': 90, 'p99': 99, 'max': 100}
    return {name: round(float(np.percentile(values, p)), 2) for name, p in names.items()}


def _fields(message: object) -> dict[str, object]:
    return {name: getattr(message, name) for name in message.get_fields_and_field_types()}


def _nanoseconds(message: Image | JointState | ActionChunk) -> int:
    return message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
