"""The language node of a robot without a model: what it is asked, its policy server answers.

It has a connection, and so a session, of its own: a question keeps no chunk waiting. The server is
shown the newest frame, and then asked about it. One that answers no questions is told by name.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import Parameters
from embodied_kv.nodes.common.remote_host import RemoteHost
from embodied_kv.nodes.observation.observation_buffer import ObservationBuffer
from embodied_kv.nodes.observation.params import ObservationParams
from embodied_kv.nodes.remote.params import RemoteParams
from embodied_kv.nodes.remote.server_link import ServerLink, remote_host
from embodied_kv.nodes.voice import LanguageParams
from embodied_kv.serving.remote_policy.connection import Reply, Unanswered
from embodied_kv.serving.remote_policy.reply import number
from embodied_kv.srv import Ask, Cancel
from embodied_kv.text import shown
from embodied_kv.types import TextDelta


@dataclass(frozen=True)
class _Question:
    stream: int
    text: str
    tokens: int
    stamp: int


class RemoteLanguage(SuiteNode):
    """Answers `ask` and `cancel`, one question at a time; the whole answer is one message."""

    on_engine = False

    def __init__(self, **arguments: object) -> None:
        super().__init__('language', LanguageParams, ObservationParams, **arguments)
        self._server_params = Parameters(
            self, [('server.', RemoteParams)], lambda: self.configured
        )
        self._streams, self._ending = itertools.count(1), threading.Lock()

    def find_host(self) -> RemoteHost:
        return remote_host(self)

    def setup(self) -> None:
        self._texts = self.publisher(TextDeltaMsg, 'language/text', qos.TEXT)
        self._frames = ObservationBuffer(self, lambda instruction: None)
        remote = self._server_params.read(RemoteParams)
        self._server, self._seconds = ServerLink(self, remote), remote.answer_seconds
        self.serve(Ask, 'language/ask', self.while_active(self._ask))
        self.serve(Cancel, 'language/cancel', self.while_active(self._cancel))

    def start(self) -> None:
        self._asked: _Question | None = None
        self._frames.restart()
        self._server.open()

    def stop(self) -> None:
        self._end('cancelled')
        self._server.close()

    # ------------------------------------------------------------------ services

    def _ask(self, request: Ask.Request, response: Ask.Response) -> None:
        policy = self._server.policy
        if not policy.is_connected:
            raise CodedError(
                f'this robot has no model of its own, and {policy.problem}', ErrorCode.UNAVAILABLE
            )
        more = policy.extensions
        if more is None or not more.questions:
            raise CodedError(
                'this robot has no model of its own, and its policy server answers no questions',
                ErrorCode.UNAVAILABLE,
            )
        if request.temperature:
            raise ValueError(
                f'temperature must be 0 with a policy server (got {request.temperature})'
            )
        if not request.question.strip():
            raise ValueError('the question is empty')
        if self._asked is not None:
            raise CodedError('too many questions at once: wait for the answer', ErrorCode.NO_ROOM)
        moment = self._frames.newest()
        if moment is None or not self._frames.instruction:
            raise CodedError(
                f'there is no frame to ask about: {self._frames.waits}', ErrorCode.STALE_FRAME
            )
        seen = self._server.observed(self._frames, moment)
        if seen is None:
            raise CodedError(
                'there is no frame to ask about: see the log of the node', ErrorCode.STALE_FRAME
            )
        tokens = request.max_tokens or self.params.read(LanguageParams).max_tokens
        asked = _Question(next(self._streams), request.question, tokens, moment.stamp)
        self._asked = asked
        shows = policy.ask(seen | {'euler_steps': more.min_euler_steps})
        shows.add_done_callback(partial(self._shown, asked))
        response.stream = asked.stream
        response.message = f'the answer comes on `language/text` as stream {asked.stream}'

    def _cancel(self, request: Cancel.Request, response: Cancel.Response) -> None:
        if self._asked is None or self._asked.stream != request.stream:
            raise LookupError(f'no live stream {request.stream}')
        self._end('cancelled')
        response.message = f'stream {request.stream} is cancelled'

    # ------------------------------------------------------------------ on the connection's thread

    def _shown(self, asked: _Question, work: Future[Reply]) -> None:
        """The server has seen the frame: now it is asked."""
        if self._reply(asked, work) is not None:
            question = {
                'endpoint': 'ask',
                'question': asked.text,
                'max_tokens': asked.tokens,
            }
            answer = self._server.policy.ask(question, self._seconds)
            answer.add_done_callback(partial(self._answered, asked))

    def _answered(self, asked: _Question, work: Future[Reply]) -> None:
        reply = self._reply(asked, work)
        if reply is None:
            return
        text = reply.get('text')
        if not isinstance(text, str):
            said = shown(reply.get('error', 'its reply has no text'), 300)
            self.warn_throttled('question', f'a question has no answer: {said}')
            self._end('error')
            return
        why = str(reply.get('reason'))
        self._end(why if why in ('eos', 'length') else 'eos', text, int(number(reply, 'tokens')))

    def _reply(self, asked: _Question, work: Future[Reply]) -> Reply | None:
        """None where nobody waits for it any more, or where there is none, which is warned of."""
        if self._asked is not asked:
            return None
        try:
            reply = work.result()
            if 'refused' in reply:
                raise Unanswered(f'the server refused it: {shown(reply["refused"], 300)}')
            return reply
        except Unanswered as error:
            self.warn_throttled('question', f'a question has no answer: {error}')
            self._end('error')
            return None

    def _end(self, why: str, text: str = '', tokens: int = 0) -> None:
        """The end of what was asked, exactly once."""
        with self._ending:
            asked, self._asked = self._asked, None
        if asked is not None:
            delta = TextDelta(
                asked.stream, asked.stream, asked.stamp, asked.text, text, tokens, why
            )
            self._texts.publish(conversions.text_message(delta))

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        policy = self._server.policy
        if policy.problem:
            return WARN, policy.problem, {}
        more = policy.extensions
        answers = more is not None and more.questions
        return OK, 'listening' if answers else 'silent: the server answers no questions', {}


def language(**arguments: object) -> RemoteLanguage:
    """The language node of this namespace: as anywhere, there is one."""
    return RemoteLanguage(**arguments)
