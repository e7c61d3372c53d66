"""The monitor observes the suite and the robot through their topics and services."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseArray
from rcl_interfaces.srv import GetParameters
from rclpy.node import Node
from rclpy.timer import Timer
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header, String
from std_srvs.srv import SetBool, Trigger

from embodied_kv.control.command import FRESH, SOURCES
from embodied_kv.demo.director import SceneQuestion
from embodied_kv.demo.nodes.truth import TrueMoment, TrueMoments
from embodied_kv.demo.recording import Decision
from embodied_kv.demo.sim.scene import SceneConfig
from embodied_kv.msg import ActionChunk, ControlState, KvHandle, TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.conversions import nanoseconds
from embodied_kv.srv import Ask, KvForget, KvStats

CAMERAS = ('front', 'wrist')
KEPT = 30  # stamps with stored images and joints
ARM_EVERY = 0.5  # s between two requests to arm
BRAKING = 0.4  # s: stopping time of the arm before a new scene
WINDOW = 3.0  # s: averaging time of the rates


@dataclass
class StreamText:
    """The text of a stream. stamp: ns, of its frame. reason: of its end, '' before.

    received: ns, reception of its end.
    """

    stamp: int
    query: str
    text: str = ''
    tokens: int = 0
    reason: str = ''
    received: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the stream ended regularly."""
        return self.reason in ('eos', 'length')


class Monitor(Node):
    """Subscribes to all topics; also instructs, asks, resets and polls.

    Counting starts at `began`, the first fresh command (s, steady clock). moments, decisions,
    ended: new true states, fresh chunks with their frames, and complete streams, which the caller
    removes. ranges: of the robot's scenes. The node belongs to one thread.
    """

    def __init__(self, namespace: str, ranges: SceneConfig) -> None:
        super().__init__('monitor', namespace=namespace)
        self.began: float | None = None
        self.began_stamp = 0  # ns on the ROS clock
        self.moments: deque[TrueMoment] = deque()
        self.decisions: deque[Decision] = deque()
        self.ended: deque[StreamText] = deque()
        self.commands: list[ActionChunk] = []
        self.frames = self.tokens = 0
        self.streams: dict[int, StreamText] = {}
        self._others = 0  # added to the numbers of streams, which a new process counts from 1 on
        self.newest: dict[str, StreamText] = {}  # query -> its newest complete text
        self.instruction = ''
        self.weights = 'unknown'
        self.stats = KvStats.Response()
        self.diagnostics: dict[str, dict[str, str]] = {}  # node -> its newest values
        self._seen: dict[str, dict[int, np.ndarray]] = {name: {} for name in (*CAMERAS, 'joints')}
        self._moments = TrueMoments(ranges)
        self._recent: dict[str, deque[tuple[float, int]]] = {'frames': deque(), 'tokens': deque()}
        for name in CAMERAS:
            self.create_subscription(
                Image, f'camera/{name}/image', self._on_image(name), qos.SENSOR
            )
        self.create_subscription(JointState, 'joint_states', self._on_joints, qos.JOINTS)
        self.create_subscription(PoseArray, 'objects', self._on_truth('objects'), qos.JOINTS)
        self.create_subscription(Header, 'held', self._on_truth('held'), qos.JOINTS)
        self.create_subscription(KvHandle, 'kv_handle', self._on_handle, qos.HANDLE)
        self.create_subscription(ActionChunk, 'action_chunk', self._on_command, 10)
        self.create_subscription(TextDelta, 'language/text', self._on_text, qos.TEXT)
        self.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 10)
        self._instructions = self.create_publisher(String, 'instruction', qos.INSTRUCTION)
        self._ask = self.create_client(Ask, 'language/ask')
        self._reset = self.create_client(Trigger, 'sim/reset')
        self._resetting: Timer | None = None
        self._arm = self.create_client(SetBool, 'control/arm')
        self._is_disarmed = False
        self.create_subscription(ControlState, 'control/state', self._on_state, qos.STATUS)
        self.create_timer(ARM_EVERY, self._keep_armed)
        self._stats = self.create_client(KvStats, 'kv/stats')
        self._forget = self.create_client(KvForget, 'kv/forget')
        self._perception = self.create_client(GetParameters, 'perception/get_parameters')

    @property
    def seconds(self) -> float:
        """Duration since the first fresh command (s); 0 before."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    def since_began(self, stamp: int) -> float:
        """Return a stamp in s since the first fresh command."""
        return (stamp - self.began_stamp) / 1e9

    def tell(self, instruction: str) -> None:
        self.instruction = instruction
        self._instructions.publish(String(data=instruction))

    def ask(self, question: SceneQuestion) -> None:
        """Ask about the newest frame; the response sets the stream of the question."""

        def answered(future) -> None:
            response = future.result()
            question.stream = response.stream and response.stream + self._others
            question.refused = '' if response.success else response.message

        request = Ask.Request(question=question.text)
        self._ask.call_async(request).add_done_callback(answered)

    def begin_process(self) -> None:
        """Keep the texts of a robot's process that has ended apart from those of the next one."""
        self._others = max(self.streams, default=0)

    def reset(self) -> None:
        """Stop the arm, then request a new scene."""
        if self._resetting is None:
            self._instructions.publish(String(data=''))
            self._resetting = self.create_timer(BRAKING, self._reset_now)

    def _reset_now(self) -> None:
        if self._resetting is not None:
            self.destroy_timer(self._resetting)
            self._resetting = None
        if self._reset.service_is_ready():
            self._reset.call_async(Trigger.Request()).add_done_callback(self._forget_frames)

    def _forget_frames(self, _: object) -> None:
        """Forget memory rows of the last scene: a table is not replaced in the real world."""
        if self._forget.service_is_ready():
            self._forget.call_async(KvForget.Request())

    def _on_state(self, message: ControlState) -> None:
        self._is_disarmed = message.state == ControlState.DISARMED

    def _keep_armed(self) -> None:
        """Arm the simulated arm like an operator; on a busy machine it may get disarmed."""
        if self._is_disarmed and self._arm.service_is_ready():
            self._arm.call_async(SetBool.Request(data=True))

    def poll(self) -> None:
        """Request the statistics of the cache and the name of the weights: `stats`, `weights`."""

        def counted(future) -> None:
            self.stats = future.result()

        def named(future) -> None:
            preset, checkpoint = (value.string_value for value in future.result().values)
            self.weights = checkpoint or f'bundled {preset}'

        if self._stats.service_is_ready():
            self._stats.call_async(KvStats.Request()).add_done_callback(counted)
        if self.weights == 'unknown' and self._perception.service_is_ready():
            request = GetParameters.Request(names=['preset', 'checkpoint'])
            self._perception.call_async(request).add_done_callback(named)

    def _on_image(self, name: str):
        def received(message: Image) -> None:
            shape = (message.height, message.width, 3)
            self._remember(name, message, np.frombuffer(message.data, np.uint8).reshape(shape))

        return received

    def _on_joints(self, message: JointState) -> None:
        self._remember('joints', message, np.array(message.position))
        self._on_truth('joints')(message)

    def _on_truth(self, part: str):
        def received(message: JointState | PoseArray | Header) -> None:
            if moment := self._moments.add(part, message):
                self.moments.append(moment)

        return received

    def _remember(self, name: str, message: Image | JointState, value: np.ndarray) -> None:
        seen = self._seen[name]
        seen[nanoseconds(message.header.stamp)] = value
        while len(seen) > KEPT:
            del seen[next(iter(seen))]

    def _on_handle(self, _: KvHandle) -> None:
        if self.began is not None:
            self.frames += 1
            self._recent['frames'].append((time.monotonic(), 1))

    def _on_command(self, message: ActionChunk) -> None:
        if self.began is None and SOURCES[message.source] == FRESH:
            self.began = time.monotonic()
            self.began_stamp = self.get_clock().now().nanoseconds
        if self.began is not None:
            self.commands.append(message)
            if decision := self._decision(message):
                self.decisions.append(decision)

    def _on_text(self, message: TextDelta) -> None:
        new = StreamText(nanoseconds(message.header.stamp), message.query)
        words = self.streams.setdefault(message.stream + self._others, new)
        if self.began is not None:
            self.tokens += message.tokens - words.tokens
            self._recent['tokens'].append((time.monotonic(), message.tokens - words.tokens))
        words.text += message.text
        words.tokens, words.reason = message.tokens, message.reason
        if words.is_whole:
            words.received = self.get_clock().now().nanoseconds
            self.ended.append(words)
            self.newest[words.query] = words

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            space, _, node = status.name.rpartition('/')
            if space == self.get_namespace().strip('/'):
                values = {value.key: value.value for value in status.values}
                self.diagnostics[node] = {'says': status.message, **values}

    def rate(self, what: str) -> float:
        """Return the present 'frames' or 'tokens' per second."""
        recent, now = self._recent[what], time.monotonic()
        while recent and recent[0][0] < now - WINDOW:
            recent.popleft()
        return sum(count for _, count in recent) / max(min(WINDOW, self.seconds), 0.5)

    @property
    def missed(self) -> int:
        """Number of periods with a missed deadline."""
        return sum(not command.deadline_met for command in self.commands)

    def _decision(self, command: ActionChunk) -> Decision | None:
        """Return the decision; None for an unknown frame or a command that is not fresh."""
        stamp = nanoseconds(command.header.stamp)
        frame = {name: seen[stamp] for name, seen in self._seen.items() if stamp in seen}
        if SOURCES[command.source] != FRESH or len(frame) < len(self._seen):
            return None
        return Decision(
            stamp=stamp,
            ready=stamp + int(command.age * 1e9),
            joints=frame.pop('joints'),
            seen=frame,
            actions=np.array(command.values).reshape(command.chunk_size, -1),
            first=command.first,
            dt=command.dt,
            note=f'frame {command.sequence}\nprefill {command.prefill_ms:.1f} ms\n'
            f'denoise {command.denoise_ms:.1f} ms\n{command.steps} Euler steps\n'
            f'{self.stats.streams} streams',
        )
