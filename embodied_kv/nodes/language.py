"""The language node: what the robot says and answers, decoded in the time that actions leave."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle, StaleHandleError
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.nodes.common import conversions, executable, qos
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import param
from embodied_kv.nodes.perception import Perception
from embodied_kv.robots.contract import Language as LanguageContract
from embodied_kv.session.participant import Participant
from embodied_kv.srv import Ask, Cancel
from embodied_kv.types import TextDelta


@dataclass(frozen=True)
class LanguageParams:
    """How often something is said unasked, and how. What, the contract says."""

    prompt_interval: int = param(
        2,
        "The contract's prompts are continued about every so many frames, of a robot without a "
        'model about every so many chunks; 0: only when asked',
        'live',
        range=(0, 100_000),
        old='every',
    )
    prompt_frames: int = param(
        2,
        'Most frames about which each prompt is continued at a time; 0: any number. More frames '
        'make larger batches and later words',
        'live',
        range=(0, 4096),
    )
    max_tokens: int = param(32, 'Longest answer, tokens', 'live', range=(1, 4096))
    temperature: float = param(0.0, 'Of the prompts; 0 is greedy', 'live', range=(0.0, 10.0))
    seed: int = param(0, 'Of the prompts; each frame adds one', 'live', range=(0, 2**62))
    publish_rate: float = param(10.0, 'Messages per second and stream', range=(0.1, 1000.0))


class Voice:
    """The streams of one robot.

    params: read at each use, as they are live. publish: takes every message.
    """

    def __init__(
        self,
        host: EngineHost,
        contract: LanguageContract,
        params: Callable[[], LanguageParams],
        publish: Callable[[TextDeltaMsg], None],
    ) -> None:
        self._host, self._contract, self._params = host, contract, params
        self._publish = publish
        self.streams: dict[int, DecodeStream] = {}  # its own, until their end is published
        self.frames = 0
        self._prompted = 0  # number of the frame that was prompted last

    # ------------------------------------------------------------------ prompts

    def due(self) -> bool:
        """Count a frame, and return whether the prompts are to be continued on it."""
        self.frames += 1
        params = self._params()
        if not params.prompt_interval or self.frames - self._prompted < params.prompt_interval:
            return False
        live = Counter(s.query.text for s in list(self.streams.values()) if not s.reason)
        most = max((live[prompt] for prompt in self._contract.prompts), default=0)
        if params.prompt_frames and most >= params.prompt_frames:
            return False
        self._prompted = self.frames
        return True

    def prompt(self, handle: KvHandle) -> None:
        """Continues the contract's prompts on a frame. Raises StaleHandleError, ValueError."""
        params = self._params()
        for prompt in self._contract.prompts:
            self._open(
                handle,
                prompt,
                max_tokens=params.max_tokens,
                temperature=params.temperature,
                seed=params.seed + self.frames,
            )

    def _open(self, handle: KvHandle, text: str, **how: object) -> DecodeStream:
        stream = self._host.engine.open(handle, text, **how)
        self.streams[stream.id] = stream
        self._host.device.wake()
        return stream

    # ------------------------------------------------------------------ services

    def ask(
        self, request: Ask.Request, response: Ask.Response, newest: Callable[[], KvHandle]
    ) -> None:
        """A stream that answers. newest: the frame that it looks at, or why there is none.

        Raises ValueError, StaleHandleError.
        """
        if not self._contract.questions:
            raise CodedError(
                'by its contract this policy answers no questions: if it was trained to, write '
                'language: {questions: true} there',
                ErrorCode.UNAVAILABLE,
            )
        if not 0 <= request.temperature < math.inf:
            raise ValueError(
                f'temperature must be finite and at least 0 (got {request.temperature})'
            )
        how = dict(
            max_tokens=request.max_tokens or self._params().max_tokens,
            temperature=request.temperature,
            seed=request.seed,
        )
        handle = newest()
        while True:
            try:
                stream = self._open(handle, request.question, **how)
                break
            except StaleHandleError:
                if handle == (newer := newest()):
                    raise
                handle = newer  # it came meanwhile, and took the row of the one before
        response.stream = stream.id
        response.message = f'the answer comes on `language/text` as stream {stream.id}'

    def cancel(self, request: Cancel.Request, response: Cancel.Response) -> None:
        """Ends a stream of its own. Raises LookupError where it has no such."""
        stream = self.streams.get(request.stream)
        if stream is None or stream.reason:
            raise LookupError(f'no live stream {request.stream}')
        self._host.engine.kv.streams.release(stream, 'cancelled')
        self._host.device.wake()
        response.message = f'stream {request.stream} is cancelled'

    # ------------------------------------------------------------------ what becomes of streams

    def own(self, streams: Sequence[DecodeStream]) -> None:
        """Streams that a capsule resumed are its own; on the device thread, before they move."""
        self.streams.update({stream.id: stream for stream in streams})

    def end(self) -> None:
        """It says no more."""
        for stream in list(self.streams.values()):
            self._host.engine.kv.streams.release(stream, 'cancelled')

    def say(self, deltas: Iterable[TextDelta]) -> None:
        """One message per stream with what it said; its end comes exactly once.

        What streams of others said is passed over.
        """
        news: dict[int, TextDelta] = {}
        for delta in deltas:
            if delta.stream in self.streams:
                said = news[delta.stream].text if delta.stream in news else ''
                news[delta.stream] = replace(delta, text=said + delta.text)
        for delta in news.values():
            if delta.text or delta.finished:
                self._publish(conversions.text_message(delta))
            if delta.finished:
                del self.streams[delta.stream]


def drained(heard: deque[TextDelta]) -> Iterator[TextDelta]:
    """All that is in it, taken out; another thread may add."""
    while heard:
        yield heard.popleft()


class Language(SuiteNode, Participant):
    """Opens streams on frames, publishes their text, and answers `ask` and `cancel`."""

    def __init__(self, **arguments: object) -> None:
        super().__init__('language', LanguageParams, **arguments)
        self._heard: deque[TextDelta] = deque()  # of any stream, from the device thread
        self._frames: deque[KvHandle] = deque(maxlen=1)  # the newest that was not read yet

    def setup(self) -> None:
        texts = self.publisher(TextDeltaMsg, 'language/text', qos.TEXT)
        self._voice = Voice(
            self.host,
            self.embodiment.contract.language,
            lambda: self.params.read(LanguageParams),
            texts.publish,
        )
        self.serve(Ask, 'language/ask', self._ask)
        self.serve(Cancel, 'language/cancel', self._voice.cancel)
        self.every(1.0 / self.params.read(LanguageParams).publish_rate, self._publish)

    def start(self) -> None:
        self._heard.clear()
        self._frames.clear()
        self.host.listen(self._heard.extend)
        self.host.session(self.robot).participants.join(self)
        self.host.frames(self.robot).listen(self._on_frame)

    def stop(self) -> None:
        self.host.frames(self.robot).unlisten(self._on_frame)
        self.host.session(self.robot).participants.leave(self)
        self._voice.end()
        self.host.flush()
        self.host.unlisten(self._heard.extend)
        self._publish()

    def on_resumed(self, streams: Sequence[DecodeStream]) -> None:
        self._voice.own(streams)

    def _publish(self) -> None:
        self._voice.say(drained(self._heard))

    def _on_frame(self, handle: KvHandle) -> None:
        """Submit the prompts of a frame to the thread of the node. On the device thread."""
        self._frames.append(handle)
        self.submit(self._surviving(self._read))

    def _read(self) -> None:
        if not self.active or not self._frames:
            return
        handle = self._frames.pop()
        try:
            self.host.engine.kv.acquire(handle).release()
            if self._voice.due():
                self._voice.prompt(handle)
        except StaleHandleError as error:
            self.warn_throttled('stale handle', f'handle refused: {error}')
        except ValueError as error:
            self.warn_throttled('prompt', f'a prompt is not continued: {error}')

    def _ask(self, request: Ask.Request, response: Ask.Response) -> None:
        if not self.active:
            raise CodedError(
                'language must be active (got inactive); activate it first', ErrorCode.NOT_ACTIVE
            )
        self._voice.ask(request, response, self._newest)

    def _newest(self) -> KvHandle:
        """The frame to ask about. Raises ValueError where there is none."""
        kv = self.host.engine.kv
        newest = kv.frames.current(self.robot)
        if newest is None or newest.deadline + kv.frames.grace < time.monotonic():
            raise CodedError(
                'there is no frame to ask about; frames are prefilled while an instruction is in '
                'force or a mission runs: send one, and look at the diagnostics of perception',
                ErrorCode.STALE_FRAME,
            )
        return newest

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        engine = self.host.engine
        batch = max(1, engine.kv.stats().streams)
        values = {
            'frames': self._voice.frames,
            'own streams': len(self._voice.streams),
            'decode (ms)': f'{engine.latency.estimate("decode", batch) * 1e3:.1f}',
        }
        if engine.policy.is_mute:
            return OK, 'mute: the policy was trained without words', values
        if not self._voice.frames:
            return WARN, 'no frame yet', values
        return OK, 'speaking' if self._voice.streams else 'listening', values


def main() -> None:
    """Run the executable `language`: frames and words, in a process of their own."""
    executable.run(Perception, Language)


if __name__ == '__main__':
    main()
