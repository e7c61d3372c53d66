"""Read rosbag2 folders (sqlite3 and MCAP) and MCAP files of any recorder, by a robot's contract.

A bag contains the topics of the contract and neither the contract nor a control state. `Bag`
yields their messages in the order of their recording, under the contract's names. It refuses data
that cannot become a data set; the error names the topic, the time and the remedy. The definitions
of messages are parsed, and nothing in a file is executed or unpickled.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcap.records import Schema
from mcap_ros2.decoder import DecoderFactory
from rosbags.interfaces import Connection, MessageDefinitionFormat
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore

from embodied_kv.data.bag_options import SECOND, BagError, BagOptions, Mark
from embodied_kv.data.recording_reader import RecordedMessage
from embodied_kv.robots.channels import COMPRESSED, GOALS, IMAGE, JOINT_STATE
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.mapping import outputs
from embodied_kv.text import listed, reason, shown

CLOCKS = 5.0  # s: largest difference between a stamp and the time of its recording
CHUNK, CONTROL, INSTRUCTION = 'action_chunk', 'control/state', 'instruction'
CHUNK_TYPE, CONTROL_TYPE = 'embodied_kv/msg/ActionChunk', 'embodied_kv/msg/ControlState'
STRING = 'std_msgs/msg/String'
PROMPT = 'lerobot.operator_prompt'  # metadata of rosetta's recorder
RECORDED = 'record the topic, correct it in the contract, or pass --namespace'


@dataclass(frozen=True)
class _Wanted:
    """A topic that is read. names: as in the contract. type: None for any."""

    names: tuple[str, ...]
    type: str | None


@dataclass(frozen=True)
class BagMessage(RecordedMessage):
    """A message of a bag. full_topic: its topic in the bag."""

    bag: Bag
    full_topic: str

    def read(self) -> Any:
        """Return the message. Raises BagError."""
        where = f'{self.full_topic} at {self.bag.when(self.stamp)}'
        try:
            message = self.decode(self.data)
            header = getattr(message, 'header', None)
            if header is not None:
                self._set_clock(message, where)
        except BagError:
            raise
        except Exception as error:  # the decoder raises errors of many types for damaged data
            raise BagError(
                f'message of {where} must be decodable (got {len(self.data)} bytes: '
                f'{shown(reason(error), 300)}); record it again, or export the time before it '
                'with --episodes'
            ) from error
        return message

    def _set_clock(self, message: Any, where: str) -> None:
        stamp = message.header.stamp
        if self.bag.options.stamps == 'receive':
            # 0 is the time of recording; that of a chunk is the time of its observation.
            age = message.age if self.topic == CHUNK else 0.0
            at = self.stamp - round(age * SECOND) if age > 0 and math.isfinite(age) else 0
            stamp.sec, stamp.nanosec = divmod(at, SECOND)
            return
        if self.topic in (CHUNK, CONTROL):  # a recorder may receive a state long after it changed
            return
        at = stamp.sec * SECOND + stamp.nanosec
        if at and abs(at - self.stamp) > CLOCKS * SECOND:
            raise BagError(
                f'stamp of {where} must be within {CLOCKS:g} s of its recording (got '
                f'{(at - self.stamp) / SECOND:+.1f} s); a clock jumped or differs: pass --stamps '
                'receive to use the times of recording'
            )


class Bag:
    """A bag, opened for a contract; `close` it. Raises BagError, OSError.

    path: its folder or file. damage: '', because damaged bags are refused. is_commanded: whether
    the actions are the messages on the controllers' topics. is_measured: whether they are measured
    positions. has_control: whether the bag contains the control state of this suite. task:
    instruction of all episodes; '' if a topic contains it. marks: its listed episodes; None if
    time and topics decide.
    """

    damage = ''

    def __init__(self, path: Path, contract: Contract, options: BagOptions) -> None:
        self.path, self.contract, self.options = path, contract, options
        self._reader = self._opened()
        try:
            self._topics: dict[str, list[Connection]] = {}
            for connection in self._reader.connections:
                self._topics.setdefault(connection.topic, []).append(connection)
            self.start, self.end = self._reader.start_time, self._reader.end_time
            self._wanted: dict[str, _Wanted] = {}
            self.marks: tuple[Mark, ...] | None = options.marks_of(path)
            self._want_observations()
            self._want_actions()
            self.task = self._want_task()
            if options.episode_topic:
                self._want(options.episode_topic, None, 'option --episode-topic')
            self._decoders = {
                c.id: self._decoder(c) for topic in self._wanted for c in self._topics[topic]
            }
        except BaseException:
            self.close()
            raise

    @property
    def period(self) -> float:
        """Return half the time (s) for which a command is in force."""
        return self.options.gap / 2

    def close(self) -> None:
        self._reader.close()

    def when(self, stamp: int) -> str:
        """Return a time of recording as text: seconds after the start of the bag, and its path."""
        return f'{(stamp - self.start) / SECOND:.2f} s of {self.path}'

    def full(self, topic: str) -> str:
        """Return the topic of a name of the contract."""
        return topic if topic.startswith('/') else f'{self.options.prefix}/{topic}'

    def messages(self) -> Iterator[BagMessage]:
        """Yield the messages of the contract's topics in the order of their recording."""
        wanted = [c for topic in self._wanted for c in self._topics[topic]]
        before = self.start
        try:
            for connection, stamp, data in self._reader.messages(wanted):
                if stamp < before:
                    raise BagError(
                        f'time of {connection.topic} must not go back (got '
                        f'{self.when(stamp)} after {self.when(before)}); the clock was set while '
                        'the bag was recorded: export its parts separately'
                    )
                before = stamp
                decode = self._decoders[connection.id]
                for name in self._wanted[connection.topic].names:
                    yield BagMessage(name, stamp, bytes(data), decode, self, connection.topic)
        except BagError:
            raise
        except Exception as error:  # as in `_opened`
            raise self._damaged(error, f' after {self.when(before)}') from error

    # ------------------------------------------------------------------ opening

    def _opened(self) -> Reader:
        if self.path.is_dir() and not (self.path / 'metadata.yaml').is_file():
            raise BagError(
                f'{self.path} must contain metadata.yaml (got none); write it with ros2 bag '
                'reindex'
            )
        try:
            reader = Reader(self.path)
            reader.open()
        except FileNotFoundError as error:
            raise BagError(f'{self.path} must exist (got none); correct the path') from error
        except Exception as error:  # the library raises errors of many types for damaged files
            raise self._damaged(error, '') from error
        return reader

    def _damaged(self, error: Exception, where: str) -> BagError:
        why = shown(reason(error), 300)
        return BagError(
            f'{self.path} must be a readable rosbag2 folder or MCAP file of ROS 2 (got an error'
            f'{where}: {why}); repair it with mcap recover or ros2 bag reindex'
        )

    def _has(self, topic: str) -> bool:
        return any(connection.msgcount for connection in self._topics.get(topic, ()))

    def _want(self, name: str, type_: str | None, why: str, fix: str = RECORDED) -> None:
        """Select a topic to be read. name: as in the contract. why: the reason, for errors."""
        topic = self.full(name)
        if not self._has(topic):
            raise BagError(
                f'{topic} of {self.path} must have messages for {why} (got none; there are '
                f'{self._alike(topic, type_)}); {fix}'
            )
        if kinds := {c.msgtype for c in self._topics[topic]} - {type_} if type_ else ():
            raise BagError(
                f'type of {topic} in {self.path} must be {type_} for {why} (got '
                f'{listed(sorted(kinds))}); correct the contract'
            )
        before = self._wanted.get(topic)
        names = (*before.names, name) if before and name not in before.names else (name,)
        self._wanted[topic] = _Wanted(names, type_)

    def _alike(self, topic: str, type_: str | None) -> str:
        """Return topics of a type that may be meant, the most similar names first."""
        names = [t for t, of in self._topics.items() if not type_ or of[0].msgtype == type_]
        return listed(difflib.get_close_matches(topic, names, 8, 0.0))

    def _want_observations(self) -> None:
        for name, view in self.contract.views.items():
            topic, type_ = view.channel.topic, view.channel.type
            compressed = f'{topic}/compressed'
            is_raw = self._has(self.full(topic)) or not self._has(self.full(compressed))
            if type_ == IMAGE and not is_raw:
                topic, type_ = compressed, COMPRESSED
            self._want(topic, type_, f'observations.{name}')
        kinds = dict.fromkeys(self.contract.feedback, JOINT_STATE)
        kinds |= {source.channel.topic: source.channel.type for source in self.contract.state}
        for topic, type_ in kinds.items():
            self._want(topic, type_, 'the state')

    def _want_actions(self) -> None:
        chunk, actions = self.full(CHUNK), self.options.actions
        if actions == 'auto':
            actions = 'chunks' if self._has(chunk) else 'commands'
        self.is_commanded, self.is_measured = actions == 'commands', actions == 'measured'
        self.has_control = actions == 'chunks' and self._has(self.full(CONTROL))
        if actions == 'chunks':
            self._want(CHUNK, CHUNK_TYPE, 'option --actions chunks')
            if self.has_control:
                self._want(CONTROL, CONTROL_TYPE, 'option --actions chunks')
        elif self.is_commanded:
            for output in outputs(self.contract):
                if output.type in GOALS:
                    raise BagError(
                        f'action of {self.path} must be on topics (got {output.topic} of '
                        f'{output.type}, whose goals no bag contains); pass --actions measured, '
                        "or write the controller's topic into a copy of the contract"
                    )
                fix = f'{RECORDED}; or pass --actions measured'
                self._want(output.topic, output.type, 'the action', fix)

    def _want_task(self) -> str:
        options = self.options
        if options.task:
            return options.task
        if self.marks is not None and all(mark.task for mark in self.marks):
            return self.marks[0].task if self.marks else ''
        if options.task_topic or self._has(self.full(INSTRUCTION)):
            topic = options.task_topic or INSTRUCTION
            self._want(topic, STRING, 'the task', 'pass --task TEXT or another --task-topic')
            return ''
        # Only a folder has metadata of its recorder.
        custom = getattr(getattr(self._reader.storage, 'metadata', None), 'custom', None)
        prompt = custom.get(PROMPT) if isinstance(custom, dict) else None
        if isinstance(prompt, str) and prompt.strip():
            return prompt.strip()
        raise BagError(
            f'task of {self.path} must be known (got no topic {self.full(INSTRUCTION)}); pass '
            '--task TEXT, --task-topic TOPIC, or the column task of --episodes'
        )

    def _decoder(self, connection: Connection) -> Callable[[bytes], Any]:
        topic, type_, encoding = connection.topic, connection.msgtype, self._encoding(connection)
        if encoding != 'cdr':
            raise BagError(
                f'messages of {topic} in {self.path} must be encoded as cdr (got '
                f'{shown(encoding)}); record them with ros2 bag record'
            )
        text = _definition(connection)
        if text is None:
            raise BagError(
                f'definition of {type_} must be in {self.path} for {topic} (got none); write it '
                'with ros2 bag convert to MCAP where the package of the message is sourced'
            )
        schema = Schema(id=1, name=type_, encoding='ros2msg', data=text.encode())
        try:
            decode = DecoderFactory().decoder_for('cdr', schema)
        except Exception as error:  # the parser raises errors of many types
            raise BagError(
                f'definition of {type_} in {self.path} must be readable (got '
                f'{shown(reason(error), 300)}); record {topic} again'
            ) from error
        assert decode is not None  # for cdr and ros2msg there is one
        return decode

    def _encoding(self, connection: Connection) -> str:
        return getattr(connection.ext, 'serialization_format', '')


def _definition(connection: Connection) -> str | None:
    """Return the definition of a message type: that of the bag, or that of a standard type."""
    if connection.msgdef.format == MessageDefinitionFormat.MSG:
        return connection.msgdef.data
    store = get_typestore(Stores.ROS2_HUMBLE)  # the last release whose bags lack definitions
    if connection.msgtype not in store.fielddefs:
        return None
    return store.generate_msgdef(connection.msgtype, ros_version=2)[0]
