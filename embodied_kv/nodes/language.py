"""The language node: decodes prompts and answers in the idle time of the engine."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle, StaleHandleError
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.nodes.common import conversions, executable, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import param
from embodied_kv.nodes.perception import Perception
from embodied_kv.session.participant import Participant
from embodied_kv.srv import Ask, Cancel
from embodied_kv.types import TextDelta


@dataclass(frozen=True)
class LanguageParams:
    """Parameters of decoding, and of the prompts of the contract."""

    prompt_interval_frames: int = param(
        2,
        'Number of frames (of a robot without a model: chunks) between two continuations of the '
        'prompts of the contract. 0: questions only',
        'live',
        range=(0, 100_000),
        old=('prompt_interval', 'every'),
    )
    max_streams_per_prompt: int = param(
        2,
        'Maximum number of decode streams of one prompt, each on another frame; 0: unlimited. '
        'More streams make larger batches and later text',
        'live',
        range=(0, 4096),
        old=('prompt_frames',),
    )
    max_tokens: int = param(32, 'Maximum length (tokens) of a text', 'live', range=(1, 4096))
    temperature: float = param(
        0.0, 'Sampling temperature of the prompts; 0 is greedy', 'live', range=(0.0, 10.0)
    )
    seed: int = param(0, 'Random seed of the prompts; each frame adds 1', 'live', range=(0, 2**62))
    publish_rate: float = param(
        10.0, 'Largest number of messages per second of each stream', range=(0.1, 1000.0)
    )


class Language(SuiteNode, Participant):
    """Opens streams on frames, publishes their text, and serves `ask` and `cancel`."""

    def __init__(self, **arguments: object) -> None:
        super().__init__('language', LanguageParams, **arguments)
        self._streams: dict[int, DecodeStream] = {}  # by id, until their end is published
        self._deltas: deque[TextDelta] = deque()  # of all streams, from the engine thread
        self._unread: deque[KvHandle] = deque(maxlen=1)  # the newest frame

    def setup(self) -> None:
        self._texts = self.publisher(TextDeltaMsg, 'language/text', qos.TEXT)
        self._streams.clear()
        self._payoff_is_logged = False
        self._frames = self._prompted = 0  # frames so far, and their number at the last prompt
        self.serve(Ask, 'language/ask', self.while_active(self._ask))
        self.serve(Cancel, 'language/cancel', self._cancel)
        self.every(1.0 / self.params.read(LanguageParams).publish_rate, self._publish)

    def start(self) -> None:
        self._deltas.clear()
        self._unread.clear()
        self.host.deltas.listen(self._deltas.extend)
        self.host.session(self.robot).participants.join(self)
        self.host.frames(self.robot).listen(self._on_frame)

    def stop(self) -> None:
        self.host.frames(self.robot).unlisten(self._on_frame)
        self.host.session(self.robot).participants.leave(self)
        for stream in list(self._streams.values()):
            self.host.engine.kv.streams.release(stream, 'cancelled')
        self.host.flush()
        self.host.deltas.unlisten(self._deltas.extend)
        self._publish()

    def on_resumed(self, streams: Sequence[DecodeStream]) -> None:
        self._streams.update({stream.id: stream for stream in streams})

    def _publish(self) -> None:
        """Publish the new text of each stream as one message, and its end exactly once.

        Streams of other clients are ignored.
        """
        news: dict[int, TextDelta] = {}
        while self._deltas:
            delta = self._deltas.popleft()
            if delta.stream in self._streams:
                before = news[delta.stream].text if delta.stream in news else ''
                news[delta.stream] = replace(delta, text=before + delta.text)
        for delta in news.values():
            if delta.text or delta.finished:
                self._texts.publish(conversions.text_message(delta))
            if delta.finished:
                del self._streams[delta.stream]

    # ------------------------------------------------------------------ prompts

    def _on_frame(self, handle: KvHandle) -> None:
        """Submit `_read` to the thread of the node; called on the engine thread."""
        self._unread.append(handle)
        self.submit(self._surviving(self._read))

    def _read(self) -> None:
        """Continue the prompts of the contract on the newest frame, if they are due."""
        if not self.active or not self._unread:
            return
        handle = self._unread.pop()
        try:
            self.host.engine.kv.acquire(handle, LANGUAGE).release()
            if self._is_due():
                params = self.params.read(LanguageParams)
                most, heat = params.max_tokens, params.temperature
                how = dict(max_tokens=most, temperature=heat, seed=params.seed + self._frames)
                for prompt in self.embodiment.contract.language.prompts:
                    self._open(handle, prompt, **how)
        except StaleHandleError as error:
            self.warn_throttled('stale handle', f'handle refused: {error}')
        except ValueError as error:
            self.warn_throttled('prompt', f'a prompt is not continued: {error}')

    def _is_due(self) -> bool:
        """Count a frame, and return whether prompts must be continued on it."""
        self._frames += 1
        params = self.params.read(LanguageParams)
        interval, most = params.prompt_interval_frames, params.max_streams_per_prompt
        if not 0 < interval <= self._frames - self._prompted:
            return False
        live = Counter(s.query.text for s in list(self._streams.values()) if not s.reason)
        prompts = self.embodiment.contract.language.prompts
        if 0 < most <= max((live[prompt] for prompt in prompts), default=0):
            return False
        self._prompted = self._frames
        return True

    def _open(self, handle: KvHandle, text: str, **how: Any) -> DecodeStream:
        stream = self.host.engine.open(handle, text, **how)
        self._streams[stream.id] = stream
        self.host.device.wake()
        return stream

    # ------------------------------------------------------------------ services

    def _ask(self, request: Ask.Request, response: Ask.Response) -> None:
        if not self.embodiment.contract.language.questions:
            raise CodedError(
                'by its contract this policy answers no questions: if it was trained to, write '
                'language: {questions: true} there',
                ErrorCode.UNAVAILABLE,
            )
        if not 0 <= request.temperature < math.inf:
            raise ValueError(
                f'temperature must be finite and at least 0 (got {request.temperature})'
            )
        most = request.max_tokens or self.params.read(LanguageParams).max_tokens
        how = dict(max_tokens=most, temperature=request.temperature, seed=request.seed)
        handle = self._newest()
        while True:
            try:
                stream = self._open(handle, request.question, **how)
                break
            except StaleHandleError:
                if handle == (newer := self._newest()):
                    raise
                handle = newer  # this frame has replaced the previous one
        response.stream = stream.id
        response.message = f'the answer is published on `language/text` as stream {stream.id}'

    def _newest(self) -> KvHandle:
        """Return the newest frame. Raises CodedError if there is none, or it is too old."""
        kv = self.host.engine.kv
        newest = kv.frames.current(self.robot)
        if newest is None or newest.deadline + kv.frames.grace < time.monotonic():
            raise CodedError(
                'there is no frame to ask about; frames are prefilled while an instruction is in '
                'force or a mission runs: send one, and check the diagnostics of perception',
                ErrorCode.STALE_FRAME,
            )
        return newest

    def _cancel(self, request: Cancel.Request, response: Cancel.Response) -> None:
        stream = self._streams.get(request.stream)
        if stream is None or stream.reason:
            raise LookupError(f'no live stream {request.stream}')
        self.host.engine.kv.streams.release(stream, 'cancelled')
        self.host.device.wake()
        response.message = f'stream {request.stream} is cancelled'

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        engine = self.host.engine
        batch = max(1, engine.kv.stats().streams)
        values = {
            'frames': self._frames,
            'own streams': len(self._streams),
            'decode (ms)': f'{engine.latency.estimate("decode", batch) * 1e3:.1f}',
            'compression': self._compression(),
        }
        if engine.policy.is_mute:
            return OK, 'mute: the policy was trained without text', values
        if not self._frames:
            return WARN, 'no frame yet', values
        return OK, 'speaking' if self._streams else 'listening', values

    def _compression(self) -> str:
        """Return what compression saves here. The first measured value is logged."""
        engine = self.host.engine
        if not engine.compression.decide().by_question:
            return 'not by question'
        if (payoff := engine.compression_payoff) is None:
            return 'not measured yet'
        if not self._payoff_is_logged:
            self._payoff_is_logged = True
            self.log_info('compression', str(payoff))
        return str(payoff)


def main() -> None:
    """Run the executable `language`: the nodes perception and language in one process."""
    executable.run(perception=Perception, language=Language)


if __name__ == '__main__':
    main()
