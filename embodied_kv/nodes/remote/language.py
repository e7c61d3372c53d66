"""The language node of a robot without a model: its policy server answers and speaks.

It has connections of its own, so a question keeps no chunk waiting. Our server is asked about the
newest chunk of the action node, and continues the contract's prompts on it. Where there is no new
chunk, the server is shown the newest frame first.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.msg import ActionChunk
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import Parameters
from embodied_kv.nodes.common.remote_host import RemoteHost
from embodied_kv.nodes.language import LanguageParams
from embodied_kv.nodes.observation.inputs import ObservationBuffer, ObservationParams
from embodied_kv.nodes.remote.params import RemoteParams
from embodied_kv.nodes.remote.server_link import ServerLink, remote_host, session_id
from embodied_kv.serving.remote_policy.connection import Reply, UnansweredError
from embodied_kv.serving.remote_policy.messages import number
from embodied_kv.srv import Ask, Cancel
from embodied_kv.text import shown
from embodied_kv.types import TextDelta

NEW = 1.0  # s in which the newest chunk is what the robot sees
ENDS = 'eos', 'length', 'cancelled', 'evicted', 'replaced', 'error'  # of a text, as of TextDelta


@dataclass(frozen=True)
class _Question:
    """One that is to be answered. about: the session whose chunk it is about, '' for its own."""

    stream: int
    text: str
    tokens: int
    stamp: int
    about: str = ''


class RemoteLanguage(SuiteNode):
    """Answers `ask` and `cancel`, one question at a time, and continues the contract's prompts.

    Each text is one message, once it is complete.
    """

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
        self._prompter = ServerLink(self, remote)
        self._acting = session_id(f'{self.get_namespace().rstrip("/")}/action')
        self.subscribe(ActionChunk, 'action_chunk', self._on_chunk, qos.HANDLE)
        self.serve(Ask, 'language/ask', self.while_active(self._ask))
        self.serve(Cancel, 'language/cancel', self.while_active(self._cancel))

    def start(self) -> None:
        self._asked: _Question | None = None
        self._chunk, self._chunk_at = 0, -math.inf  # of the newest frame that was served
        self._stamp = 0  # of that frame
        self._served = self._prompted = 0  # frames: so many, and which was prompted last
        self._prompting = False
        self._frames.restart()
        self._server.open()
        if self.embodiment.contract.language.prompts:
            self._prompter.open()

    def stop(self) -> None:
        self._end('cancelled')
        self._server.close()
        self._prompter.close()

    # ------------------------------------------------------------------ prompts

    def _on_chunk(self, message: ActionChunk) -> None:
        """A chunk of a new frame is executed: the server has a row of that frame."""
        if message.source != ActionChunk.FRESH or message.sequence == self._chunk:
            return
        self._chunk, self._chunk_at = message.sequence, time.monotonic()
        self._stamp = conversions.nanoseconds(message.header.stamp)
        self._served += 1
        params = self.params.read(LanguageParams)
        prompts = self.embodiment.contract.language.prompts
        is_due = 0 < params.prompt_interval <= self._served - self._prompted
        if not prompts or not is_due or self._prompting:
            return
        policy = self._prompter.policy
        if not policy.is_connected or policy.extensions is None or not policy.extensions.words:
            return
        self._prompted, self._prompting = self._served, True
        self._prompt([*prompts])

    def _prompt(self, prompts: list[str]) -> None:
        """Continue these prompts, one after another, on the newest chunk."""
        tokens = self.params.read(LanguageParams).max_tokens
        stream = next(self._streams)
        asked = _Question(stream, prompts.pop(0), tokens, self._stamp, self._acting)
        texts = self._prompter.policy.ask(_request(asked) | {'evict': False}, self._seconds)
        texts.add_done_callback(partial(self._on_text, asked, prompts))

    def _on_text(self, asked: _Question, prompts: list[str], work: Future[Reply]) -> None:
        """Publish what was said, and continue the next prompt. On the connection's thread."""
        try:
            if self.active:
                self._publish(asked, *_text(work.result()))
        except (UnansweredError, CancelledError) as error:
            self.warn_throttled('prompt', f'a prompt is not continued: {error}')
        if prompts and self.active:
            self._prompt(prompts)
        else:
            self._prompting = False

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
        tokens = request.max_tokens or self.params.read(LanguageParams).max_tokens
        if more.words and time.monotonic() - self._chunk_at < NEW:
            number, about = next(self._streams), self._acting
            asked = _Question(number, request.question, tokens, self._stamp, about)
            self._begin(asked, response)
            self._query(asked)
            return
        moment = self._frames.newest()
        if moment is None or not (more.words or self._frames.instruction):
            raise CodedError(
                f'there is no frame to ask about: {self._frames.waits}', ErrorCode.STALE_FRAME
            )
        seen = self._server.observed(self._frames, moment)
        if seen is None:
            raise CodedError(
                'there is no frame to ask about: see the log of the node', ErrorCode.STALE_FRAME
            )
        asked = _Question(next(self._streams), request.question, tokens, moment.stamp)
        self._begin(asked, response)
        looks = {'endpoint': 'look'} if more.words else {'euler_steps': more.min_euler_steps}
        shows = policy.ask(seen | looks, self._seconds)
        shows.add_done_callback(partial(self._shown, asked))

    def _begin(self, asked: _Question, response: Ask.Response) -> None:
        self._asked, response.stream = asked, asked.stream
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
            self._query(asked)

    def _query(self, asked: _Question) -> None:
        answer = self._server.policy.ask(_request(asked), self._seconds)
        answer.add_done_callback(partial(self._answered, asked))

    def _answered(self, asked: _Question, work: Future[Reply]) -> None:
        reply = self._reply(asked, work)
        if reply is None:
            return
        try:
            text, tokens, why = _text(reply)
        except UnansweredError as error:
            self.warn_throttled('question', f'a question has no answer: {error}')
            self._end('error')
            return
        self._end(why, text, tokens)

    def _reply(self, asked: _Question, work: Future[Reply]) -> Reply | None:
        """None where nobody waits for it any more, or where there is none, which is warned of."""
        if self._asked is not asked:
            return None
        try:
            reply = work.result()
            if refusal := reply.get('refused') or reply.get('error'):
                raise UnansweredError(f'the server refused it: {shown(refusal, 300)}')
            return reply
        except UnansweredError as error:
            self.warn_throttled('question', f'a question has no answer: {error}')
            self._end('error')
            return None

    def _end(self, why: str, text: str = '', tokens: int = 0) -> None:
        """The end of what was asked, exactly once."""
        with self._ending:
            asked, self._asked = self._asked, None
        if asked is not None:
            self._publish(asked, text, tokens, why)

    def _publish(self, asked: _Question, text: str, tokens: int, why: str) -> None:
        delta = TextDelta(asked.stream, asked.stream, asked.stamp, asked.text, text, tokens, why)
        self._texts.publish(conversions.text_message(delta))

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        policy = self._server.policy
        if policy.problem:
            return WARN, policy.problem, {}
        more = policy.extensions
        answers = more is not None and more.questions
        return OK, 'listening' if answers else 'silent: the server answers no questions', {}


def _request(asked: _Question) -> dict[str, object]:
    request = {'endpoint': 'ask', 'question': asked.text, 'max_tokens': asked.tokens}
    return request | ({'about': asked.about} if asked.about else {})


def _text(reply: object) -> tuple[str, int, str]:
    """Return a text, its tokens and the reason of its end. Raises UnansweredError."""
    text = reply.get('text') if isinstance(reply, dict) else None
    if not isinstance(text, str):
        error = reply.get('error') if isinstance(reply, dict) else None
        raise UnansweredError(shown(error or 'its reply has no text', 300))
    why = str(reply.get('reason'))
    return text, int(number(reply, 'tokens')), why if why in ENDS else 'eos'


def language(**arguments: object) -> RemoteLanguage:
    """The language node of this namespace: as anywhere, there is one."""
    return RemoteLanguage(**arguments)
