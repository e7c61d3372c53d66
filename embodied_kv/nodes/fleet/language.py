"""What the robots of a fleet say and answer, each in its own namespace.

Knows the rows that are kept of robots, and each robot's share of streams. The engine decodes the
streams of all robots in one batch; when, the fleet's server says. Nothing here waits for the
engine but for the end of a step.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rclpy.publisher import Publisher

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle, Stale
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.lifecycle_node import OK
from embodied_kv.nodes.fleet.robots_node import RobotsNode
from embodied_kv.nodes.voice import LanguageParams, Voice, drained
from embodied_kv.serving.batch import KeptRows
from embodied_kv.serving.shares import NoShare, StreamShares
from embodied_kv.srv import Ask, Cancel
from embodied_kv.types import TextDelta

UNSAID = 8  # ends of a robot that are still to be published; with more it has to wait


class FleetLanguage(RobotsNode):
    """Publishes `language/text` and answers `language/ask` and `language/cancel` of every robot.

    kept: the rows that are read. shares: of the engine's streams. on_said: takes a robot and each
    of its messages, too. on_mission: whether a mission of this robot is under way, which looks
    while the robot stands and asks the fleet for nothing.
    """

    def __init__(
        self,
        host: EngineHost,
        kept: KeptRows,
        shares: StreamShares,
        on_said: Callable[[str, TextDeltaMsg], None],
        on_mission: Callable[[str], bool],
        **arguments: object,
    ) -> None:
        super().__init__('language', host, LanguageParams, **arguments)
        self._kept, self._shares = kept, shares
        self._on_said, self._on_mission = on_said, on_mission
        self._voices: dict[str, Voice] = {}
        self._served: set[str] = set()  # robots that were, and have not vanished since
        self._heard: deque[TextDelta] = deque()  # of any stream, from the device thread
        self.skipped = 0  # prompts for which there was no share

    def setup(self) -> None:
        self.every(1.0 / self.params.read(LanguageParams).publish_rate, self._publish)

    def start(self) -> None:
        self._heard.clear()
        self.host.listen(self._heard.extend)

    def stop(self) -> None:
        for voice in self._voices.values():
            voice.end()
        self.host.flush()
        self.host.unlisten(self._heard.extend)
        self._publish()
        super().stop()

    # ------------------------------------------------------------------ robots come and go

    def join(self, robot: str) -> None:
        """A robot has come."""
        prefix = robot.rstrip('/')
        with self.joining(robot) as closing:
            self._shares.join(robot)
            closing.callback(self._shares.leave, robot)
            closing.callback(self._served.discard, robot)
            texts = self.publisher(TextDeltaMsg, f'{prefix}/language/text', qos.TEXT)
            voice = self._voices[robot] = Voice(
                self.host,
                self.embodiment.contract.language,
                lambda: self.params.read(LanguageParams),
                partial(self._say, robot, texts),
                lambda asked: self._shares.room(robot, ends=asked),
            )
            closing.callback(self._voices.pop, robot)
            ask = self.while_active(partial(self._ask, robot))
            self.serve(Ask, f'{prefix}/language/ask', ask)
            self.serve(Cancel, f'{prefix}/language/cancel', voice.cancel)

    # ------------------------------------------------------------------ from other threads

    def served(self, robots: Iterable[str]) -> None:
        """These robots have new rows. On the device thread: prompts begin in its slack."""
        for robot in robots:
            self._served.add(robot)
            voice = self._voices.get(robot)
            if voice is not None and voice.due():
                self.host.device.background(partial(self._prompt, robot, voice))

    def silence(self, robot: str) -> None:
        """A robot has vanished, if only for a while: its streams end, but those of a mission."""
        self._served.discard(robot)
        voice = self._voices.get(robot)
        if voice is not None and not self._on_mission(robot):
            voice.end()

    def own(self, robot: str, streams: Sequence[DecodeStream]) -> None:
        """A capsule of the robot resumed these; on the device thread, before they move on."""
        self._voices[robot].own(streams)

    def _prompt(self, robot: str, voice: Voice) -> None:
        handle = self._row(robot)
        if handle is None:
            return
        try:
            voice.prompt(handle)
        except NoShare:
            self.skipped += 1
        except (Stale, ValueError) as error:
            self.warn_throttled('prompt', f'a prompt of {robot} is not continued: {error}')

    # ------------------------------------------------------------------ what is said and asked

    def _publish(self) -> None:
        deltas = list(drained(self._heard))  # first: a stream is known before it says anything
        speakers = {id: voice for voice in self._voices.values() for id in list(voice.streams)}
        said: dict[Voice, list[TextDelta]] = defaultdict(list)
        for delta in deltas:
            if delta.stream in speakers:
                said[speakers[delta.stream]].append(delta)
        for voice, deltas in said.items():
            voice.say(deltas)

    def _say(self, robot: str, texts: Publisher, message: TextDeltaMsg) -> None:
        texts.publish(message)
        self._on_said(robot, message)

    def _ask(self, robot: str, request: Ask.Request, response: Ask.Response) -> None:
        voice = self._voices[robot]
        if sum(bool(stream.reason) for stream in list(voice.streams.values())) > UNSAID:
            raise CodedError('too many questions at once: wait for the answers', ErrorCode.NO_ROOM)
        voice.ask(request, response, partial(self._newest, robot))

    def _row(self, robot: str) -> KvHandle | None:
        """The robot's newest one, while chunks are made of it, or a mission looks through it."""
        there = robot in self._served or self._on_mission(robot)
        return self._kept.newest(robot) if there else None

    def _newest(self, robot: str) -> KvHandle:
        """The robot's row. Raises ValueError where there is none."""
        handle = self._row(robot)
        if handle is None:
            raise CodedError(
                f'there is no frame of {robot} to ask about: has the fleet answered it lately, by '
                'its own engine, and is engine.rows enough for all robots?',
                ErrorCode.STALE_FRAME,
            )
        return handle

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        engine, streams = self.host.engine, len(self.host.engine.kv.streams.live())
        values = {
            'robots': len(self._voices),
            'streams': streams,
            'streams of a robot, most': self._shares.each,
            'decode (ms)': f'{engine.costs.estimate("decode", max(1, streams)) * 1e3:.1f}',
            'prompts that had to wait': self.skipped,
        }
        if engine.policy.is_mute:
            return OK, 'mute: the policy was trained without words', values
        return OK, 'speaking' if streams else 'listening', values
