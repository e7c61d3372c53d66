"""Actors in the worlds: a policy behind the serving engine, in several modes, and the expert.

This module knows the engine and its order of work: actions first, then words. It does not know
success.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from embodied_kv.control.execution_horizon import Policy as HorizonPolicy
from embodied_kv.control.rtc import LINEAR, weights
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.handle import KvHandle
from embodied_kv.model.policy import Policy
from embodied_kv.session.frame_memory_part import FrameMemoryPart
from embodied_kv.types import ActionChunk, Guide, TextDelta
from training.evaluate.cases import LONGEST, Case, Choice, Frame
from training.evaluate.questions import (
    Answer,
    Question,
    expert_plan,
    most_streams,
    questions,
    subtask_of,
)

PASTS = ('same', 'restored', 'lost')
MODES = ('isolated', 'shared', 'batched')  # and 'silent'
LONGEST_QUERY = 64  # tokens


class Expert:
    """The scripted expert, which knows the truth: a bound. chunk_size: actions of a chunk."""

    def __init__(self, chunk_size: int) -> None:
        self._chunk_size = chunk_size

    def act(self, frames: Sequence[Frame]) -> list[Choice]:
        return [Choice(chunk) for chunk in expert_plan(frames, self._chunk_size)[0]]

    def finish(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Compressed:
    """Compression of the prefixes that are read: fields of EngineConfig of the same names."""

    action_keep_ratio: float = 1.0
    language_keep_ratio: float = 1.0
    compression_method: str = EngineConfig.compression_method
    compression_queries: str = EngineConfig.compression_queries

    def compressed_rows(self, rows: int, streams: int) -> int:
        """Return room for a copy of each row, and of each stream's prefix.

        It is doubled, because blocks leave gaps.
        """
        readers = (self.action_keep_ratio, rows), (self.language_keep_ratio, max(rows, streams))
        whole = sum(keep_ratio * copies for keep_ratio, copies in readers if keep_ratio < 1)
        return 2 + math.ceil(2 * whole)


@dataclass(frozen=True)
class Chunking:
    """How a chunk is made: Euler steps, and its continuity with the previous chunk.

    rtc, rtc_max_guidance, candidates (`chunk_candidates`): fields of EngineConfig. schedule,
    horizon: of the weights of guidance, see `control.rtc.weights`.
    """

    euler_steps: int = 10
    rtc: str = EngineConfig.rtc
    rtc_max_guidance: float = EngineConfig.rtc_max_guidance
    schedule: str = LINEAR
    horizon: int = LONGEST
    candidates: int = EngineConfig.chunk_candidates

    def guide(self, frame: Frame, chunk_size: int) -> Guide:
        """Return the action prefix of a frame's chunk."""
        delay, horizon = min(frame.delay, chunk_size - 1), min(self.horizon, chunk_size)
        held = weights(delay, horizon, chunk_size, self.schedule)
        return Guide(frame.leftover[:chunk_size], delay, held)


class Served:
    """A policy behind the engine: acts on each frame of every robot, then answers questions on it.

    mode: `isolated` prefills a second time for words, `shared` reads the row of the action; both
    finish their answers before the next frame. `batched` reads the row of the action and takes
    `steps` decode steps of all live streams per frame; `silent` answers nothing. horizon_policy:
    how far each chunk is executed before the next frame; None: as the worlds are set. answers: all
    answers so far. subtasks: by case, the correct one of every frame. memory_rows,
    memory_keep_ratio, memory_kept_rows: as of EngineConfig; the moments before an episode become
    memory rows. past: the engine of these moments, `same`; `restored`: another one, whose memory
    rows come by capsule; `lost`: another one, whose memory rows are lost. Raises ValueError for
    what the engine cannot compress, and for more memory rows than the policy was trained with.
    """

    def __init__(
        self,
        policy: Policy,
        mode: str,
        robots: int,
        steps: int,
        max_tokens: int,
        compressed: Compressed = Compressed(),
        horizon_policy: HorizonPolicy | None = None,
        chunking: Chunking = Chunking(),
        memory_rows: int = 0,
        memory_keep_ratio: float = 1.0,
        past: str = PASTS[0],
        memory_kept_rows: int = 0,
    ) -> None:
        self._horizon_policy, self._chunking = horizon_policy, chunking
        self._mode, self._steps, self._max_tokens = mode, steps, max_tokens
        # Largest number of frames for which a decode stream is live.
        life = 1 + math.ceil(max_tokens / steps) if mode == 'batched' else 1
        rows, streams = robots * (life + 2) + 2, robots * most_streams(life)
        config = EngineConfig(
            max_batch_robots=robots,
            rows=rows,
            streams=streams,
            compressed_rows=compressed.compressed_rows(rows, streams),
            **vars(compressed),
            decode_tokens=LONGEST_QUERY + max_tokens,
            euler_steps=chunking.euler_steps,
            min_euler_steps=chunking.euler_steps,
            chunk_candidates=chunking.candidates,
            rtc=chunking.rtc,
            rtc_max_guidance=chunking.rtc_max_guidance,
            memory_rows=memory_rows,
            memory_keep_ratio=memory_keep_ratio,
            memory_kept_rows=memory_kept_rows,
            time_budget=False,
        )
        self.engine = former = Engine(policy, config, policy.config.action_dt)
        if past != PASTS[0]:
            former = Engine(policy, config, policy.config.action_dt)
        self._former, self._past = former, past
        self.answers: list[Answer] = []
        self.subtasks: dict[Case, list[str]] = defaultdict(list)
        self._asked: dict[int, Question] = {}  # live stream -> its question
        self._said: dict[int, str] = defaultdict(str)

    def act(self, frames: Sequence[Frame]) -> list[Choice]:
        for frame in frames:
            if frame.number == 0:
                self._recall(frame)
        handles, chunks = self._prefill_and_denoise(frames)
        if self._mode != 'silent':
            self._talk(frames, handles)
        return [Choice(chunk.values, self._execution_horizon(chunk)) for chunk in chunks]

    def _recall(self, frame: Frame) -> None:
        """Begin an episode: its earlier moments become memory rows of its robot, no others."""
        seen = frame.observation
        for engine in (self.engine, self._former):
            engine.forget(seen.robot)
        for number, moment in enumerate(frame.memory if self.engine.memory.most else ()):
            earlier = replace(
                seen,
                images=moment.images,
                state=moment.state,
                instruction=moment.instruction,
                stamp=round((moment.time - frame.memory[-1].time - 1) * 1e9),
                sequence=number,
            )
            self._former.prefill([earlier])
        if self._past == 'restored':
            frozen = FrameMemoryPart(self._former, seen.robot).freeze()
            FrameMemoryPart(self.engine, seen.robot).resume(frozen)

    def _execution_horizon(self, chunk: ActionChunk) -> int | None:
        return None if self._horizon_policy is None else self._horizon_policy(chunk.updates)

    def _talk(self, frames: Sequence[Frame], handles: Sequence[KvHandle]) -> None:
        if self._mode == 'isolated':
            handles = self.engine.prefill([frame.observation for frame in frames])
        _, phases = expert_plan(frames, chunk_size=1)
        for frame, handle, phase in zip(frames, handles, phases, strict=True):
            self.subtasks[frame.case].append(subtask_of(frame, phase))
            for question in questions(frame, phase):
                stream = self.engine.open(handle, question.text, max_tokens=self._max_tokens)
                self._asked[stream.id] = question
        self._decode(self._steps if self._mode == 'batched' else None)

    def finish(self) -> None:
        """Decode every stream to its end. Raises RuntimeError if a copy found no room."""
        self._decode(None)
        if self.engine.kv.copies.allocation_failures:
            raise RuntimeError(
                f'{self.engine.kv.copies.allocation_failures} copies of prefixes found no room'
            )

    def latency(self, frame: Frame, repeats: int = 20, warm_up: int = 5) -> float:
        """Return the median seconds from one robot's observation to its chunk."""
        seconds = []
        for _ in range(warm_up + repeats):
            began = time.perf_counter()
            self._prefill_and_denoise([frame])
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds[warm_up:])

    def _prefill_and_denoise(
        self, frames: Sequence[Frame]
    ) -> tuple[list[KvHandle], list[ActionChunk]]:
        handles = self.engine.prefill([frame.observation for frame in frames])
        leases = [self.engine.kv.acquire(handle) for handle in handles]
        chunk_size = self.engine.policy.config.chunk_size
        guides = [self._chunking.guide(frame, chunk_size) for frame in frames]
        chunks = self.engine.denoise(leases, [math.inf] * len(leases), guides=guides)
        for lease in leases:
            lease.release()
        return handles, chunks

    def _decode(self, steps: int | None) -> None:
        """Run `steps` decode steps of all streams; None: until all have ended.

        Steps of a single stream do not count.
        """
        engine, left = self.engine, math.inf if steps is None else steps
        while engine.kv.streams.live():
            _, is_alone = engine.next_batch()
            if not (left or is_alone):
                return
            left -= not is_alone
            self._hear(engine.decode())

    def _hear(self, deltas: Sequence[TextDelta]) -> None:
        for delta in deltas:
            self._said[delta.stream] += delta.text
            if delta.reason not in ('', 'eos', 'length'):
                raise RuntimeError(f'an answer was cut off: its stream was {delta.reason}')
            if delta.finished:
                question = self._asked.pop(delta.stream)
                self.answers.append(Answer(question, self._said.pop(delta.stream)))
