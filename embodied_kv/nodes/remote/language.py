"""The language node of a robot without a model: its policy server computes the text.

The node has separate connections, so that a question delays no chunk. A server of this package
answers about the newest chunk of the action node, and continues the prompts of the contract on it.
Without a recent chunk, the node first sends the newest frame.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.msg import ActionChunk
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN
from embodied_kv.nodes.language import LanguageParams
from embodied_kv.nodes.observation.inputs import ObservationBuffer, ObservationParams
from embodied_kv.nodes.remote.server_link import ConnectedNode, ServerLink, session_id
from embodied_kv.serving.remote_policy.connection import Reply, UnansweredError
from embodied_kv.serving.remote_policy.messages import number
from embodied_kv.session.participant import Done, Participant
from embodied_kv.srv import Ask, Cancel
from embodied_kv.text import shown
from embodied_kv.types import TextDelta

NEW = 1.0  # s for which the newest chunk shows the present scene
ENDS = 'eos', 'length', 'cancelled', 'evicted', 'replaced', 'error'  # `reason` of TextDelta

T = TypeVar('T')


@dataclass(frozen=True)
class _Question:
    """A question in flight. about: session of the chunk; '': the session of the connection."""

    stream: int
    text: str
    tokens: int
    stamp: int
    about: str = ''

    @property
    def request(self) -> dict[str, object]:
        request = {'endpoint': 'ask', 'question': self.text, 'max_tokens': self.tokens}
        return request | ({'about': self.about} if self.about else {})


class RemoteLanguage(ConnectedNode, Participant):
    """Serves `ask` and `cancel`, one question at a time, and continues the contract's prompts.

    Each text is published as one message when it is complete.
    """

    def __init__(self, **arguments: object) -> None:
        super().__init__('language', LanguageParams, ObservationParams, **arguments)
        self._streams, self._ending = itertools.count(1), threading.Lock()

    def setup(self) -> None:
        self._texts = self.publisher(TextDeltaMsg, 'language/text', qos.TEXT)
        self._frames = ObservationBuffer(self, lambda instruction: None)
        remote = self.server_params
        self._server, self._seconds = ServerLink(self, remote), remote.answer_timeout
        self._prompter = ServerLink(self, remote)
        self._acting = session_id(f'{self.get_namespace().rstrip("/")}/action')
        self.subscribe(ActionChunk, 'action_chunk', self._on_chunk, qos.HANDLE)
        self.serve(Ask, 'language/ask', self.while_active(self._ask))
        self.serve(Cancel, 'language/cancel', self.while_active(self._cancel))

    def start(self) -> None:
        self._asked: _Question | None = None
        self._chunk, self._chunk_at = 0, -math.inf  # the newest chunk's number, and its arrival
        self._stamp = 0  # stamp (ns) of its frame
        self._served = self._prompted = 0  # chunks so far, and their number at the last prompt
        self._prompting = False
        self._frames.restart()
        self.host.session(self.robot).participants.join(self)
        self._server.open()
        if self.embodiment.contract.language.prompts:
            self._prompter.open()

    def stop(self) -> None:
        self.host.session(self.robot).participants.leave(self)
        self._end('cancelled')
        self._server.close()
        self._prompter.close()

    def on_done(self, done: Done) -> None:
        """Ask about a new frame: the server's newest one is that of the capsule now."""
        if done.verb in ('restore', 'rollback'):
            self._chunk_at = -math.inf

    # ------------------------------------------------------------------ prompts

    def _on_chunk(self, message: ActionChunk) -> None:
        """Continue prompts on a new chunk, because the server has the row of its frame."""
        if message.source != ActionChunk.FRESH or message.sequence == self._chunk:
            return
        self._chunk, self._chunk_at = message.sequence, time.monotonic()
        self._stamp = conversions.nanoseconds(message.header.stamp)
        self._served += 1
        interval = self.params.read(LanguageParams).prompt_interval_frames
        prompts = self.embodiment.contract.language.prompts
        is_due = 0 < interval <= self._served - self._prompted
        if not prompts or not is_due or self._prompting:
            return
        policy = self._prompter.policy
        if policy.is_connected and policy.extensions is not None and policy.extensions.words:
            self._prompted, self._prompting = self._served, True
            self._prompt([*prompts])

    def _prompt(self, prompts: list[str]) -> None:
        """Continue these prompts, one after another, on the newest chunk."""
        asked = self._question(prompts.pop(0), 0, self._stamp, self._acting)
        texts = self._prompter.policy.ask(asked.request | {'evict': False}, self._seconds)
        texts.add_done_callback(partial(self._on_text, asked, prompts))

    def _on_text(self, asked: _Question, prompts: list[str], work: Future[Reply]) -> None:
        """Publish a text, and continue the next prompt; called on the connection's thread."""
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
        more = policy.extensions
        if not policy.is_connected or more is None or not more.questions:
            why = (
                'its policy server answers no questions' if policy.is_connected else policy.problem
            )
            raise CodedError(
                f'this robot has no model of its own, and {why}', ErrorCode.UNAVAILABLE
            )
        if request.temperature:
            raise ValueError(
                f'temperature must be 0 with a policy server (got {request.temperature})'
            )
        if not request.question.strip():
            raise ValueError('question must not be empty')
        if self._asked is not None:
            raise CodedError('too many questions at once: wait for the answer', ErrorCode.NO_ROOM)
        if more.words and time.monotonic() - self._chunk_at < NEW:
            shows = None
            stamp, about = self._stamp, self._acting
        else:
            shows, stamp = self._newest_frame(more.words)
            about = ''
            shows |= {'endpoint': 'look'} if more.words else {'euler_steps': more.min_euler_steps}
        asked = self._question(request.question, request.max_tokens, stamp, about)
        self._asked, response.stream = asked, asked.stream
        response.message = f'the answer is published on `language/text` as stream {asked.stream}'
        if shows is None:
            self._query(asked)
        else:
            seen = policy.ask(shows, self._seconds)
            seen.add_done_callback(partial(self._shown, asked))

    def _question(self, text: str, tokens: int, stamp: int, about: str) -> _Question:
        tokens = tokens or self.params.read(LanguageParams).max_tokens
        return _Question(next(self._streams), text, tokens, stamp, about)

    def _newest_frame(self, words: bool) -> tuple[dict[str, object], int]:
        """Return a request about the newest frame, and its stamp (ns). Raises CodedError."""
        moment = self._frames.newest()
        if moment is None or not (words or self._frames.instruction):
            raise CodedError(
                f'there is no frame to ask about: {self._frames.waits}', ErrorCode.STALE_FRAME
            )
        request = self._server.observed(self._frames, moment)
        if request is None:
            raise CodedError(
                'there is no frame to ask about: see the log of the node', ErrorCode.STALE_FRAME
            )
        return request, moment.stamp

    def _cancel(self, request: Cancel.Request, response: Cancel.Response) -> None:
        if self._asked is None or self._asked.stream != request.stream:
            raise LookupError(f'no live stream {request.stream}')
        self._end('cancelled')
        response.message = f'stream {request.stream} is cancelled'

    # ------------------------------------------------------------------ on the connection's thread

    def _shown(self, asked: _Question, work: Future[Reply]) -> None:
        """Send the question after its frame."""
        if self._read(asked, work, _accepted) is not None:
            self._query(asked)

    def _query(self, asked: _Question) -> None:
        answer = self._server.policy.ask(asked.request, self._seconds)
        answer.add_done_callback(partial(self._answered, asked))

    def _answered(self, asked: _Question, work: Future[Reply]) -> None:
        if (text := self._read(asked, work, _text)) is not None:
            self._end(text[2], *text[:2])

    def _read(
        self, asked: _Question, work: Future[Reply], read: Callable[[object], T]
    ) -> T | None:
        """Return `read` of a reply; None if it failed, or if the question has ended."""
        if self._asked is not asked:
            return None
        try:
            return read(work.result())
        except UnansweredError as error:
            self.warn_throttled('question', f'a question has no answer: {error}')
            self._end('error')
            return None

    def _end(self, why: str, text: str = '', tokens: int = 0) -> None:
        """End the question in flight, exactly once."""
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


def _accepted(reply: object) -> dict[str, object]:
    """Return a reply. Raises UnansweredError for a refusal."""
    reply = reply if isinstance(reply, dict) else {}
    if refusal := reply.get('refused') or reply.get('error'):
        raise UnansweredError(f'the server refused it: {shown(refusal, 300)}')
    return reply


def _text(reply: object) -> tuple[str, int, str]:
    """Return a text, its tokens and the reason of its end. Raises UnansweredError."""
    reply = _accepted(reply)
    if not isinstance(text := reply.get('text'), str):
        raise UnansweredError('its reply has no text')
    why = str(reply.get('reason'))
    return text, int(number(reply, 'tokens')), why if why in ENDS else 'eos'
