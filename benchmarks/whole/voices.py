"""Language of the robots: questions about frames, from shared rows in one batch, or separately.

Knows the engine, and the frames of robots. Does not know the callers, nor when there is time.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from benchmarks.whole.settings import Settings
from embodied_kv.demo.sim.language import NARRATE, SUBTASK
from embodied_kv.engine.engine import Engine
from embodied_kv.errors import CodedError
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.serving.batch import KeptRows
from embodied_kv.serving.stream_quota import QuotaError, StreamQuota
from embodied_kv.session.participant import Participant
from embodied_kv.types import Observation

PROMPTS = SUBTASK, NARRATE  # of the contract
QUESTION, PROMPT = 48, 32  # maximum tokens of an answer
ENDED = 'eos', 'length'

OnAnswer = Callable[[str], object]
Unit = Callable[[], object]  # of work


@dataclass(frozen=True, eq=False)
class Frame:
    """An observation that questions are asked about. lease: of the row that they share, if any."""

    seen: Observation
    lease: Lease | None = None

    def leave(self) -> None:
        """Release the row; no more questions are asked about the frame."""
        if self.lease is not None:
            self.lease.release()


@dataclass(frozen=True, eq=False)
class Question:
    """A question about a frame, and the callback for its answer."""

    frame: Frame
    text: str
    most: int
    on_answer: OnAnswer


class Voices(Participant):
    """OxyGen: a frame is prefilled once for all questions about it; all streams decode together.

    tokens, answers: of the answers that came to their end. refused: number of questions that found
    no row, no quota of streams or no room in the KV budget. evicted: number of answers cut off.
    """

    def __init__(
        self, engine: Engine, shares: StreamQuota, kept: KeptRows, settings: Settings
    ) -> None:
        self._engine, self._shares, self._kept = engine, shares, kept
        self._narration, self._most = settings.narration_tokens, settings.streams_per_prompt
        self._live: dict[int, tuple[DecodeStream, OnAnswer]] = {}
        self._prompts: Counter[str] = Counter()  # by robot: number of open prompts
        self._asked: Counter[str] = Counter()  # by robot: number of prompts so far
        self.tokens = self.answers = self.refused = self.evicted = 0

    # ------------------------------------------------------------------ frames and questions

    def look(self, seen: Observation) -> Frame:
        """Prefill a frame for several questions, on the device. Release it by `leave`."""
        return Frame(seen, self._engine.kv.acquire(self._prefill(seen)))

    def ask(
        self, frame: Frame, text: str, on_answer: OnAnswer = str, most: int | None = None
    ) -> None:
        """Ask a question.

        on_answer: called after a unit of work with the text; '' if the answer was cut off.
        """
        self._open(Question(frame, text, most or QUESTION, on_answer))

    def prompt(self, seen: Observation) -> None:
        """Ask the contract's prompts on a served frame, unless too many are still open."""
        robot = seen.robot
        if self._prompts[robot] <= (self._most - 1) * len(PROMPTS):
            self._prompts[robot] += len(PROMPTS)
            for text in PROMPTS:
                self._asked[robot] += 1
                most = self._length(robot) if text == NARRATE else PROMPT
                self.ask(Frame(seen), text, partial(self._prompted, robot), most)

    def _length(self, robot: str) -> int:
        """Return the maximum tokens of a robot's next narration."""
        if self._narration is None:
            return PROMPT
        return Random(f'{robot} {self._asked[robot]}').randint(*self._narration)

    def on_resumed(self, streams: Sequence[DecodeStream]) -> None:
        """Take over streams that a capsule resumed; nothing waits for their text."""
        self._live.update({stream.id: (stream, str) for stream in streams})

    def asked(self, robot: str) -> list[tuple[str, int]]:
        """Return the questions that are being answered, with the maximum tokens of each answer."""
        streams = (stream for stream, _ in self._live.values() if not stream.reason)
        return [
            (s.query.text, s.query.max_tokens) for s in streams if s.lease.handle.robot == robot
        ]

    def _prompted(self, robot: str, words: str) -> None:
        self._prompts[robot] -= 1

    # ------------------------------------------------------------------ units of work

    def unit(self, now: float) -> Unit | None:
        """Return the next unit of work, if there is one and it fits the slack."""
        if self._engine.kv.streams.live() and self._engine.decode_fits(now):
            return self._engine.decode
        return None

    def robots(self) -> int:
        """Return the number of robots with live streams, at least 1."""
        return len({s.lease.handle.robot for s in self._engine.kv.streams.live()}) or 1

    def hear(self) -> None:
        """Deliver the answers of the streams that have ended; called after each unit."""
        tokenizer = self._engine.policy.tokenizer
        for stream, on_answer in list(self._live.values()):
            if tokenizer.eos in stream.tokens[-1:] and not self._continues(stream):
                self._engine.kv.streams.release(stream, 'eos')
            if not stream.reason:
                continue
            del self._live[stream.id]
            ended = stream.reason in ENDED
            self.tokens += len(stream.tokens) if ended else 0
            self.answers += ended
            self.evicted += stream.reason == 'evicted'
            words = tokenizer.decode(stream.tokens).strip() if ended else ''
            on_answer(words)

    def _continues(self, stream: DecodeStream) -> bool:
        """Return whether an answer continues to its length, beyond the policy's sentence."""
        return self._narration is not None and stream.query.text == NARRATE

    def _open(self, question: Question, handle: KvHandle | None = None) -> None:
        lease, robot = question.frame.lease, question.frame.seen.robot
        handle = handle or (lease.handle if lease else self._kept.newest(robot))
        try:
            if handle is None:
                raise QuotaError(f'no row of {robot} is kept')
            with self._shares.room(robot, ends=False):
                stream = self._engine.open(handle, question.text, max_tokens=question.most)
        except CodedError:
            self.refused += 1
            return question.on_answer('')
        self._live[stream.id] = stream, question.on_answer

    def _prefill(self, seen: Observation) -> KvHandle:
        (handle,) = self._engine.prefill([replace(seen, deadline=-math.inf)])
        return handle


class Apart(Voices):
    """Without a shared cache: each question prefills its own frame, and streams run one by one."""

    def __init__(
        self, engine: Engine, shares: StreamQuota, kept: KeptRows, settings: Settings
    ) -> None:
        super().__init__(engine, shares, kept, settings)
        self._waiting: deque[Question] = deque()

    def look(self, seen: Observation) -> Frame:
        """Return the frame; nothing is computed until a question is asked."""
        return Frame(seen)

    def asked(self, robot: str) -> list[tuple[str, int]]:
        waiting = [(q.text, q.most) for q in self._waiting if q.frame.seen.robot == robot]
        return super().asked(robot) + waiting

    def unit(self, now: float) -> Unit | None:
        if self._engine.kv.streams.live():
            return super().unit(now)
        if self._waiting and self._engine.budget.admits(now, 'prefill'):
            return self._begin
        return None

    def _open(self, question: Question, handle: KvHandle | None = None) -> None:
        self._waiting.append(question)

    def _begin(self) -> object:
        question = self._waiting.popleft()
        try:
            handle = self._prefill(question.frame.seen)
        except OutOfRowsError:
            self.refused += 1
            return question.on_answer('')
        with self._engine.kv.acquire(handle):
            return super()._open(question, handle)
