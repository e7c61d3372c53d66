"""The recorder node: writes the messages of a robot to one MCAP file per recording.

Between recordings, it subscribes to the instruction only. During a recording, it counts the
messages that are missing in the file because the recorder dropped or the middleware lost them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rclpy.serialization import serialize_message
from rclpy.subscription import Subscription
from std_msgs.msg import String

from embodied_kv import storage
from embodied_kv.data.recording_file import PART, Channel, RecordingFile, is_being_written
from embodied_kv.data.recording_queue import RecordingQueue
from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.msg import RecordingState
from embodied_kv.nodes.common import executable, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import one_of, param
from embodied_kv.nodes.common.polling import queued
from embodied_kv.nodes.common.publishers import type_name
from embodied_kv.nodes.recording.topics import (
    COMPRESSIONS,
    INSTRUCTION,
    Convert,
    RecordedTopic,
    definition,
    recorded,
)
from embodied_kv.robots.reading import to_text
from embodied_kv.srv import Record
from embodied_kv.text import reason, shown

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # before ROS 2 Iron
    from rclpy.qos_event import SubscriptionEventCallbacks

MIB = 2**20
LEAST = 2**20  # minimum space (bytes) for a recording
PERIOD = 1.0  # s between two reports
STATE = 'recording/state'
REPAIR = 'finish it with python -m embodied_kv.data.repair'
NAME = re.compile(r'\w[\w.-]{0,99}')


@dataclass(frozen=True)
class RecorderParams:
    """Parameters of the recorder."""

    record: bool = param(False, 'Record from activation on; else from the service `record` on')
    recording_directory: str = param(
        '~/.ros/embodied_kv/recordings',
        'Directory of the recordings, with a subdirectory for each namespace; empty: none',
        old=('folder',),
    )
    disk_mib: int = param(
        8192,
        'Maximum size (MiB) of all recordings of the directory; changes apply to the next '
        'recording',
        'live',
        range=(2, 2**30),
    )
    queue_mib: int = param(
        64,
        'Maximum size (MiB) of the messages that wait for the disk; others are dropped',
        range=(1, 2**20),
        old=('waiting_mib',),
    )
    image_compression: str = param(
        'jpeg',
        'Compression of raw images: jpeg, png (lossless), or none',
        check=one_of(COMPRESSIONS),
    )
    jpeg_quality: int = param(90, 'JPEG quality', range=(1, 100))


@dataclass(frozen=True)
class InstructionParams:
    """The initial instruction, a parameter that the recorder shares with the observing nodes."""

    instruction: str = param('', 'Instruction at the start, as of perception')


class Recorder(SuiteNode):
    """Serves `record`, and publishes `recording/state`."""

    may_wait, on_engine = True, False

    def __init__(self, **arguments: object) -> None:
        super().__init__('recorder', RecorderParams, InstructionParams, **arguments)
        self._instruction: str | None = None  # None: unknown
        self.create_subscription(String, INSTRUCTION, self._on_instruction, qos.INSTRUCTION)

    def find_host(self) -> None:
        """Return None, because the recorder needs no engine."""

    def setup(self) -> None:
        params = self.params.read(RecorderParams)
        self._folder = Path(params.recording_directory).expanduser() / self.robot.strip('/')
        self._topics = recorded(
            self.embodiment.contract, params.image_compression, params.jpeg_quality
        )
        self._contract = to_text(self.embodiment.contract)
        self._kept = dict(topic.kept_as for topic in self._topics) | {STATE: RecordingState}
        # The export reads topics by their names in the contract, so remappings are not applied.
        self._names = {
            topic: self.resolve_topic_name(topic, only_expand=True) for topic in self._kept
        }
        if self._instruction is None:  # no message was received yet
            self._instruction = self.params.read(InstructionParams).instruction.strip() or None
        self._queue: RecordingQueue | None = None
        self._path, self._state = Path(), RecordingState()
        self._listening: list[tuple[Subscription, RecordedTopic]] = []
        self._outcome, self._is_whole = '', False  # of the last recording
        self._states = self.publisher(RecordingState, STATE, qos.STATUS)
        self.serve(Record, 'record', self.while_active(self._answer))
        self.every(PERIOD, self._check)
        self._warn_of_parts()

    def start(self) -> None:
        if self.params.read(RecorderParams).record:
            self._begin('')

    def stop(self) -> None:
        self._end('the recorder was deactivated')

    # ------------------------------------------------------------------ the service

    def _answer(self, request: Record.Request, response: Record.Response) -> None:
        if request.record:
            self._begin(request.name)
            response.message = f'recording {self._path}'
        else:
            if self._queue is None:
                raise CodedError(
                    'record must be true while nothing is recorded (got false)',
                    ErrorCode.NOT_FOUND,
                )
            self._end('requested')
            response.message = self._outcome
        response.path, response.messages = self._state.path, self._state.messages
        response.bytes, response.dropped = self._state.bytes, sum(self._state.dropped)
        if not request.record and not self._is_whole:
            raise OSError(self._outcome)

    def _begin(self, name: str) -> None:
        if self._queue is not None:
            raise CodedError(
                f'one recording is possible at a time (got a second to {self._path}); end it '
                'first with record: false',
                ErrorCode.ALREADY_EXISTS,
            )
        name = name or f'{datetime.now():%Y%m%d-%H%M%S-%f}'
        if not NAME.fullmatch(name):
            raise ValueError(
                "name must be up to 100 letters, digits, '_', '-' and '.', and begin with a "
                f"letter, digit or '_' (got '{shown(name)}')"
            )
        params = self.params.read(RecorderParams)
        if not params.recording_directory:
            raise ValueError(
                'recorder.recording_directory must be a directory (got an empty name); set it'
            )
        storage.private_folder(self._folder)
        path = self._folder / f'{name}.mcap'
        if path.exists() or path.with_name(path.name + PART).exists():
            raise CodedError(
                f'{path} exists already; choose another name', ErrorCode.ALREADY_EXISTS
            )
        room = params.disk_mib * MIB - self._taken()
        if room < LEAST:
            raise CodedError(
                f'{self._folder} is full; remove recordings, or raise recorder.disk_mib '
                f'({params.disk_mib})',
                ErrorCode.NO_ROOM,
            )
        self._path = path
        file = RecordingFile(path, room, self._channels(), self._facts(), self._contract)
        self._queue = RecordingQueue(file, params.queue_mib * MIB)
        self.log_info('record', f'recording {path}')
        if self._instruction is not None:
            self._put(INSTRUCTION, serialize_message(String(data=self._instruction)))
        try:
            for topic in self._topics:
                self._listening.append((self._listen(topic), topic))
        except Exception as error:
            self._end(f'subscribing failed: {reason(error)}')
            raise
        self._publish_state(self._queue)

    def _end(self, why: str) -> None:
        """Finish the recording, if there is one."""
        if self._queue is None:
            return
        for subscription, topic in self._listening:
            for data, _ in queued(subscription):  # those of before the end
                self._on_message(topic, data)
            self.destroy_subscription(subscription)
        self._listening = []
        queue = self._queue
        self._publish_state(queue)  # adds the final count of dropped messages to the file
        queue.close(why)
        self._is_whole = queue.is_whole
        if not self._is_whole:
            self._path = queue.file.part
        self._publish_state(queue)
        self._queue, path = None, self._path
        if self._is_whole:
            self._outcome = f'{path} is finished: {queue.ended}'
            self.log_info('record', self._outcome)
        else:
            self._outcome = f'{path} is left unfinished: {queue.ended}; {REPAIR} {path}'
            self.log_error('record', self._outcome)

    # ------------------------------------------------------------------ messages

    def _listen(self, topic: RecordedTopic) -> Subscription:
        kept_as, _ = topic.kept_as

        def lost(info: Any) -> None:
            self._lost(kept_as, info.total_count_change)

        return self.create_subscription(
            topic.kind,
            topic.topic,
            partial(self._on_message, topic),
            topic.profile,
            raw=True,
            event_callbacks=SubscriptionEventCallbacks(message_lost=lost),
        )

    def _on_message(self, topic: RecordedTopic, data: bytes) -> None:
        self._put(topic.kept_as[0], data, topic.convert)

    def _put(self, topic: str, data: bytes, convert: Convert | None = None) -> None:
        queue = self._queue
        if queue is not None:
            now = self.get_clock().now().nanoseconds
            queue.put(self._names[topic], now, data, convert)

    def _lost(self, topic: str, count: int) -> None:
        queue = self._queue
        if queue is not None:
            queue.lose(self._names[topic], count)

    def _on_instruction(self, message: String) -> None:
        self._instruction = message.data.strip()

    # ------------------------------------------------------------------ the file

    def _channels(self) -> tuple[Channel, ...]:
        return tuple(
            Channel(self._names[topic], type_name(kind), definition(kind))
            for topic, kind in self._kept.items()
        )

    def _facts(self) -> dict[str, str]:
        contract = self.embodiment.contract
        return {
            'namespace': self.robot,
            'robot_type': contract.robot_type,
            'rate': f'{self.suite.control_frequency:g}',
            'ros_time': str(self.get_clock().now().nanoseconds),
        }

    def _taken(self) -> int:
        files = [*self._folder.glob('*.mcap'), *self._folder.glob(f'*.mcap{PART}')]
        return sum(file.stat().st_size for file in files)

    def _warn_of_parts(self) -> None:
        if not self.params.read(RecorderParams).recording_directory:
            return
        for part in sorted(self._folder.glob(f'*.mcap{PART}')):
            try:
                is_unfinished = not is_being_written(part)
            except OSError as error:  # owned by another user, or not a regular file
                self.log_warning(f'part {part.name}', reason(error))
                continue
            if is_unfinished:
                self.log_warning(f'part {part.name}', f'{part} was cut off; {REPAIR} {part}')

    # ------------------------------------------------------------------ progress

    def _check(self) -> None:
        queue = self._queue
        if queue is None:
            return
        if queue.ended:
            self.log_error('record', f'{self._path} ended: {queue.ended}')
            self._end(queue.ended)
        else:
            self._publish_state(queue)

    def _publish_state(self, queue: RecordingQueue) -> None:
        """Publish the state of the recording, and record it."""
        dropped = queue.counted()
        self._state = RecordingState(
            recording=not queue.ended,
            path=str(self._path),
            message=queue.ended,
            messages=queue.file.messages,
            bytes=queue.file.bytes,
            topics=list(dropped),
            dropped=list(dropped.values()),
        )
        self._state.header.stamp = self.get_clock().now().to_msg()
        self._states.publish(self._state)
        if not queue.ended:
            self._put(STATE, serialize_message(self._state))
        for topic, count in dropped.items():
            self.log_warning(
                f'dropped {topic}',
                f'{count} messages of {topic} are not in the recording: '
                f'{queue.fault or "lost by the middleware"}',
            )

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        state = self._state
        values = {
            'file': state.path or 'none',
            'messages': state.messages,
            'MiB': f'{state.bytes / MIB:.1f}',
            'dropped': sum(state.dropped),
            **{f'dropped, {t}': n for t, n in zip(state.topics, state.dropped, strict=True)},
        }
        if sum(state.dropped):
            return WARN, f'{sum(state.dropped)} messages are not in {state.path}', values
        if self._queue is None:
            return OK, f'nothing is recorded{": " * bool(state.message)}{state.message}', values
        return OK, f'recording {state.path}', values


def main() -> None:
    """Run the executable `recorder`."""
    executable.run(recorder=Recorder)


if __name__ == '__main__':
    main()
