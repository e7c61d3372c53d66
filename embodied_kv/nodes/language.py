"""The language node: what the robot says and answers, decoded in the time that actions leave."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle, Stale
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.nodes.common import executable, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.voice import LanguageParams, Voice, drained
from embodied_kv.session.participant import Participant
from embodied_kv.srv import Ask, Cancel
from embodied_kv.types import TextDelta


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
        except Stale as error:
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
            'decode (ms)': f'{engine.costs.estimate("decode", batch) * 1e3:.1f}',
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
