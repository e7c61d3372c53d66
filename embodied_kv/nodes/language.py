"""The language node: what the robot says and answers, decoded in the time that actions leave."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle, Stale
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.nodes.common import conversions, executable, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import param
from embodied_kv.nodes.observation.handle_source import HandleSource, frame_params
from embodied_kv.srv import Ask, Cancel
from embodied_kv.types import TextDelta


@dataclass(frozen=True)
class LanguageParams:
    """How often something is said unasked, and how. What, the contract says."""

    prompt_interval: int = param(
        2,
        "The contract's prompts are continued about every so many frames; 0: only when asked",
        'live',
        range=(0, 100_000),
        old='every',
    )
    max_tokens: int = param(32, 'Longest answer, tokens', 'live', range=(1, 4096))
    temperature: float = param(0.0, 'Of the prompts; 0 is greedy', 'live', range=(0.0, 10.0))
    seed: int = param(0, 'Of the prompts; each frame adds one', 'live', range=(0, 2**62))
    publish_rate: float = param(10.0, 'Messages per second and stream', range=(0.1, 1000.0))


class Language(SuiteNode):
    """Opens streams on frames, publishes what they say on `text`, and answers `ask` and `cancel`.

    standalone: in a process without a perception node it prefills for itself.
    """

    def __init__(self, standalone: bool = False, **arguments: object) -> None:
        super().__init__('language', LanguageParams, *frame_params(standalone), **arguments)
        self._standalone = standalone
        self._count = 0  # frames
        self._streams: dict[int, DecodeStream] = {}  # ours, until their end is published
        self._heard: deque[TextDelta] = deque()  # of any stream, from the device thread

    def setup(self) -> None:
        self._texts = self.publisher(TextDeltaMsg, 'language/text', qos.TEXT)
        self.serve(Ask, 'language/ask', self._ask)
        self.serve(Cancel, 'language/cancel', self._cancel)
        self._frames = HandleSource(self, self._standalone, self._on_handle)
        self.every(1.0 / self.params.read(LanguageParams).publish_rate, self._publish)

    def start(self) -> None:
        self._heard.clear()
        self.host.listen(self._hear)
        self.host.session(self.robot).engine_part.on_resumed = self._own
        self._frames.restart()

    def stop(self) -> None:
        self.host.session(self.robot).engine_part.on_resumed = lambda streams: None
        for stream in list(self._streams.values()):
            self.host.engine.kv.streams.release(stream, 'cancelled')
        self.host.flush()
        self.host.unlisten(self._hear)
        self._publish()

    # ------------------------------------------------------------------ streams

    def _on_handle(self, handle: KvHandle) -> None:
        params = self.params.read(LanguageParams)
        try:
            self.host.engine.kv.acquire(handle).release()
            self._count += 1
            if params.prompt_interval and self._count % params.prompt_interval == 0:
                for prompt in self.embodiment.contract.language.prompts:
                    self._open(
                        handle,
                        prompt,
                        max_tokens=params.max_tokens,
                        temperature=params.temperature,
                        seed=params.seed + self._count,
                    )
        except Stale as error:
            self._frames.refuse(handle, error)
        except ValueError as error:
            self.warn_throttled('prompt', f'a prompt is not continued: {error}')

    def _open(self, handle: KvHandle, text: str, **how: object) -> DecodeStream:
        stream = self.host.engine.open(handle, text, **how)
        self._streams[stream.id] = stream
        self.host.device.wake()
        return stream

    def _own(self, streams: Sequence[DecodeStream]) -> None:
        """Streams that a capsule resumed are ours; on the device thread, before they move on."""
        self._streams.update({stream.id: stream for stream in streams})

    def _hear(self, deltas: Sequence[TextDelta]) -> None:
        self._heard.extend(deltas)

    def _publish(self) -> None:
        """One message per stream with what it said since the last; its end comes exactly once."""
        news: dict[int, TextDelta] = {}
        while self._heard:
            delta = self._heard.popleft()
            if delta.stream in self._streams:
                said = news[delta.stream].text if delta.stream in news else ''
                news[delta.stream] = replace(delta, text=said + delta.text)
        for delta in news.values():
            if delta.text or delta.finished:
                self._texts.publish(conversions.text_message(delta))
            if delta.finished:
                del self._streams[delta.stream]

    # ------------------------------------------------------------------ services

    def _ask(self, request: Ask.Request, response: Ask.Response) -> None:
        if not self.active:
            raise ValueError('language is not active: activate it first')
        if not self.embodiment.contract.language.questions:
            raise ValueError(
                'by its contract this policy answers no questions: if it was trained to, write '
                'language: {questions: true} there'
            )
        if not 0 <= request.temperature < math.inf:
            raise ValueError(f'temperature is {request.temperature}: 0 is greedy, more is freer')
        kv = self.host.engine.kv
        newest = kv.frames.current(self.robot)
        if newest is None or newest.deadline + kv.frames.grace < time.monotonic():
            raise ValueError(
                'there is no frame to ask about: do the cameras send, is perception active?'
            )
        stream = self._open(
            newest,
            request.question,
            max_tokens=request.max_tokens or self.params.read(LanguageParams).max_tokens,
            temperature=request.temperature,
            seed=request.seed,
        )
        response.stream = stream.id
        response.message = f'the answer comes on `language/text` as stream {stream.id}'

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
            'frames': self._count,
            'own streams': len(self._streams),
            'decode (ms)': f'{engine.costs.estimate("decode", batch) * 1e3:.1f}',
        }
        if not self._count:
            return WARN, 'no frame yet', values
        return OK, 'speaking' if self._streams else 'listening', values


def main() -> None:
    """Run the executable `language`, in a process of its own."""
    executable.run(Language, standalone=True)


if __name__ == '__main__':
    main()
