"""What robots are asked and say: from rows that are shared, in one batch, or each for itself.

Knows the engine, and the frames of robots. Does not know who asks, nor when there is time.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from embodied_kv.demo.sim.language import NARRATE, SUBTASK
from embodied_kv.engine.engine import Engine
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.serving.batch import KeptRows
from embodied_kv.serving.stream_quota import QuotaError, StreamQuota
from embodied_kv.session.participant import Participant
from embodied_kv.types import Observation

PROMPTS = SUBTASK, NARRATE  # of the contract
QUESTION, PROMPT = 48, 32  # tokens of an answer
ENDED = 'eos', 'length'

OnAnswer = Callable[[str], object]
Unit = Callable[[], object]  # of work


@dataclass(frozen=True, eq=False)
class Frame:
    """What is asked about. lease: on the row that all questions about it read."""

    seen: Observation
    lease: Lease | None = None

    def leave(self) -> None:
        """Nothing more is asked about it."""
        if self.lease is not None:
            self.lease.release()


@dataclass(frozen=True, eq=False)
class Question:
    """A text about a frame, and what takes the answer."""

    frame: Frame
    text: str
    most: int
    on_answer: OnAnswer


class Voices(Participant):
    """OxyGen: a frame is prefilled once, for all that is asked of it; all streams go on together.

    tokens: of so many answers that came to their end. refused: questions that had no row, or no
    share of the streams.
    """

    def __init__(self, engine: Engine, shares: StreamQuota, kept: KeptRows) -> None:
        self._engine, self._shares, self._kept = engine, shares, kept
        self._live: dict[int, tuple[DecodeStream, OnAnswer]] = {}
        self._prompts: Counter[str] = Counter()  # of each robot, that are not answered
        self.tokens = self.answers = self.refused = 0

    # ------------------------------------------------------------------ frames and questions

    def look(self, seen: Observation) -> Frame:
        """On the device: a frame that several questions are asked about. Leave it."""
        return Frame(seen, self._engine.kv.acquire(self._prefill(seen)))

    def ask(
        self, frame: Frame, text: str, on_answer: OnAnswer = str, most: int | None = None
    ) -> None:
        """on_answer: called where units end, with the words; '' where it was cut off."""
        self._open(Question(frame, text, most or QUESTION, on_answer))

    def prompt(self, seen: Observation) -> None:
        """The contract's prompts on a frame that was served, once those before are answered."""
        robot = seen.robot
        if not self._prompts[robot]:
            self._prompts[robot] = len(PROMPTS)
            for text in PROMPTS:
                self.ask(Frame(seen), text, partial(self._prompted, robot), PROMPT)

    def on_resumed(self, streams: Sequence[DecodeStream]) -> None:
        """A capsule resumed them; nobody waits for what they say."""
        self._live.update({stream.id: (stream, str) for stream in streams})

    def asked(self, robot: str) -> list[tuple[str, int]]:
        """Questions that are being answered now, and how many tokens each answer has at most."""
        streams = (stream for stream, _ in self._live.values() if not stream.reason)
        return [
            (s.query.text, s.query.max_tokens) for s in streams if s.lease.handle.robot == robot
        ]

    def _prompted(self, robot: str, words: str) -> None:
        self._prompts[robot] -= 1

    # ------------------------------------------------------------------ units of work

    def unit(self, now: float) -> Unit | None:
        """What comes next, if there is anything and it fits the slack."""
        if self._engine.kv.streams.live() and self._engine.decode_fits(now):
            return self._engine.decode
        return None

    def hear(self) -> None:
        """After each unit: who has ended is answered."""
        for stream, on_answer in list(self._live.values()):
            if not stream.reason:
                continue
            del self._live[stream.id]
            ended = stream.reason in ENDED
            self.tokens += len(stream.tokens) if ended else 0
            self.answers += ended
            words = self._engine.policy.tokenizer.decode(stream.tokens).strip() if ended else ''
            on_answer(words)

    def _open(self, question: Question, handle: KvHandle | None = None) -> None:
        lease, robot = question.frame.lease, question.frame.seen.robot
        handle = handle or (lease.handle if lease else self._kept.newest(robot))
        try:
            if handle is None:
                raise QuotaError(f'no row of {robot} is kept')
            with self._shares.room(robot, ends=False):
                stream = self._engine.open(handle, question.text, max_tokens=question.most)
        except QuotaError:
            self.refused += 1
            return question.on_answer('')
        self._live[stream.id] = stream, question.on_answer

    def _prefill(self, seen: Observation) -> KvHandle:
        (handle,) = self._engine.prefill([replace(seen, deadline=-math.inf)])
        return handle


class Apart(Voices):
    """Without it: each question has its frame prefilled for itself, and they go on one by one."""

    def __init__(self, engine: Engine, shares: StreamQuota, kept: KeptRows) -> None:
        super().__init__(engine, shares, kept)
        self._waiting: deque[Question] = deque()

    def look(self, seen: Observation) -> Frame:
        """Nothing is computed until something is asked."""
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

    def _begin(self) -> None:
        question = self._waiting.popleft()
        handle = self._prefill(question.frame.seen)
        with self._engine.kv.acquire(handle):
            super()._open(question, handle)
