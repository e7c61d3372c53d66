"""The engine: one model, one KV arena, one time budget.

A frame is prefilled once; actions and language read it. Methods that compute must run on the
`EngineThread`; any thread may open and cancel streams, and read statistics.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from operator import attrgetter

import numpy as np
import torch

from embodied_kv.engine.compression import ACTION, Compression, PromptScores
from embodied_kv.engine.compression_payoff import (
    CHOICE,
    CompressionPayoff,
    kind_of_step,
    payoff,
)
from embodied_kv.engine.decode import Decoder, Detokenizer
from embodied_kv.engine.denoise import Denoiser, consensus, noise
from embodied_kv.engine.guidance import LeftoverActions, leftover
from embodied_kv.engine.prefill import Prefiller
from embodied_kv.engine.remembering import Remembering
from embodied_kv.engine.shapes import compiler_for, copied_tokens, copy_capacity, doubling
from embodied_kv.engine.time_budget import LatencyEstimator, TimeBudget
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.compressed_arena import CompressedArena, whole_blocks
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.frame_memory import MemoryRow
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.manager import KvManager
from embodied_kv.kv.views import rows_read
from embodied_kv.model.policy import MEMORY_ROWS, Policy
from embodied_kv.model.prepacked import pack
from embodied_kv.runtime.graph_cache import GraphCache
from embodied_kv.runtime.stream import Stream
from embodied_kv.types import ActionChunk, Guide, Observation, TextDelta


class Engine:
    """Prefill, denoise and decode over lists, so that a fleet batches robots by the same calls.

    The policy's larger weights are packed in place (`model.prepacked`). period: time (s) between
    two frames of a robot. say: receives a line for the user before something is compiled.
    defers_traces: with compile: auto, trace computations without a recipe after the start (see
    `Compiler`). Raises ValueError for invalid parameters, with the remedy.
    """

    def __init__(
        self,
        policy: Policy,
        config: EngineConfig,
        period: float = 0.1,
        say: Callable[[str], object] | None = None,
        defers_traces: bool = False,
    ) -> None:
        if config.time_budget and config.deadline_margin_ms >= period * 1e3:
            raise ValueError(
                'engine.deadline_margin_ms must be shorter than the period of '
                f'{period * 1e3:.1f} ms (got {config.deadline_margin_ms}); lower it, or '
                'control_frequency'
            )
        if config.rtc == 'trained' and not policy.max_action_prefix:
            raise ValueError(
                "engine.rtc must be 'off' or 'guided' for this checkpoint, which was not trained "
                "to continue given actions (got 'trained'); set it to 'guided'"
            )
        if config.memory_rows < 0:  # as many as it was trained with
            reads = not (policy.config.cross_layers or policy.is_random)
            trained = min(policy.max_memory_rows, MEMORY_ROWS) if reads else 0
            kept = config.memory_kept_rows if trained else 0
            config = replace(config, memory_rows=trained, memory_kept_rows=kept)
        if config.memory_rows > policy.max_memory_rows:
            raise ValueError(
                f'engine.memory_rows must be at most {policy.max_memory_rows}, the number that '
                f'this checkpoint was trained with (got {config.memory_rows}); lower it'
            )
        self.policy, self.config = policy, config
        with torch.no_grad():
            pack(policy.model)
        model, b = policy.model, policy.config.backbone
        size = {name: getattr(b, name) for name in ('layers', 'kv_heads', 'head_dim')}
        size |= dict(dtype=model.dtype, device=model.device)
        decode_kv = Arena(rows=config.streams, max_tokens=config.decode_tokens, **size)
        size['layers'] = layers = policy.config.kv_layers
        prefixes = Arena(rows=config.rows, max_tokens=policy.config.prefix_tokens, **size)
        room = config.compressed_rows * layers * policy.config.prefix_tokens
        # One copy for each stream, and for each frame one for language and one for actions.
        copies = config.streams + 2 * config.rows
        if config.memory_rows:  # then each row, or stream without one, has a copy behind them
            copied = whole_blocks(layers * copied_tokens(policy.config, config))
            robots = config.max_batch_robots  # each has one more until its recall tokens exist
            room += (config.rows + config.streams + robots) * copied
            copies += robots
        compressed = CompressedArena(prefixes, rows=copies, tokens=room)
        # The frame of each robot is read while its next one is written.
        per_row = prefixes.bytes_per_row
        scored = config.compression_queries == 'text' and config.compressed_rows
        if scored or (config.memory_rows and config.memory_keep_ratio < 1):
            per_row += PromptScores.most_bytes(policy.config)
        actions = max(config.reserved_rows, 2 * config.max_batch_robots) * per_row
        kv_budget, reserved = (
            KvBudget(config.kv_budget, config.kv_eviction_file),
            config.reserved_rows,
        )
        self.kv = KvManager(
            prefixes,
            decode_kv,
            compressed,
            reserved,
            kv_budget=kv_budget,
            floor=actions,
            keeps_rows=config.memory_rows > 0,
        )
        self.latency = LatencyEstimator()
        self.budget = TimeBudget(
            self.latency,
            period=period,
            margin=config.deadline_margin_ms / 1e3,
            euler_steps=config.euler_steps,
            min_euler_steps=config.min_euler_steps,
            enabled=config.time_budget,
            allowed=config.allowed(policy.config, period),
            longest=config.idle_unit_ms / 1e3,
        )
        compiler = compiler_for(policy, config, say, defers_traces)
        self.graphs = GraphCache(model.device, compiler)
        steps = range(config.min_euler_steps, config.euler_steps + 1)
        with torch.inference_mode():
            self.compression = Compression(self.kv, policy.config, config)
            self._remembering = Remembering(
                policy, self.kv, self.compression, self.latency, self.graphs, config
            )
            self.memory = self._remembering.rows
            self._prefiller = Prefiller(
                policy, prefixes, config.max_batch_robots, self.graphs, self.compression
            )
            chunks = config.max_batch_robots * config.chunk_candidates
            rtc = chunks, config.rtc, config.rtc_max_guidance
            self._denoiser = Denoiser(
                model,
                prefixes,
                compressed,
                steps,
                self.graphs,
                *rtc,
                policy.sums_times,
                copy_capacity(policy.config, config, config.action_keep_ratio),
            )
            self._decoder = Decoder(
                model, self.kv, policy.tokenizer.eos, config, self.graphs, self.compression
            )
        self._turns = count(1)
        self.committed = 0  # completed steps: prefills, chunks, decode steps
        self.states: dict[int, np.ndarray] = {}  # row -> state that relative actions start from
        self.guides: dict[int, Guide | None] = {}  # row -> actions that its chunk continued
        self.detokenizer = Detokenizer(policy.tokenizer)

    # ------------------------------------------------------------------ prefill

    @torch.inference_mode()
    def prefill(self, observations: Sequence[Observation]) -> list[KvHandle]:
        """Write each observation into its own row; on an error all these rows are free again.

        If a compression method fails, only its copies are missing: the frames are complete before.

        Raises:
            BadObservationError: One observation is invalid; the error has its robot.
            ValueError: The batch is invalid.
            OutOfRowsError: Fewer rows are free.
        """
        began, decided = time.monotonic(), self.compression.decide()
        self._prefiller.validate(observations)
        self.budget.frame_began(began)
        for observation in observations:
            self._remembering.before(observation)
        with self.kv.reserving(len(observations), began) as rows:
            written = self._prefiller.run(observations, rows, decided)
            Stream.current(self.policy.model.device).synchronize()
            took = time.monotonic() - began
            handles = [
                self._commit(o, row, prefix.length, took)
                for o, row, prefix in zip(observations, rows, written, strict=True)
            ]
        for slot, (handle, prefix) in enumerate(zip(handles, written, strict=True)):
            self.compression.compress_frame(handle, slot, prefix.queries, decided)
        self._remembering.after(handles, observations)
        Stream.current(self.policy.model.device).synchronize()
        self.committed += 1
        self.latency.observe('prefill', time.monotonic() - began, len(rows))
        return handles

    def _commit(self, o: Observation, row: int, length: int, took: float) -> KvHandle:
        self.states[row] = o.state.copy()  # the caller may reuse its array
        self.guides.pop(row, None)
        return self.kv.frames.commit(
            row,
            length,
            robot=o.robot,
            sequence=o.sequence,
            stamp=o.stamp,
            deadline=o.deadline,
            prefill_ms=took * 1e3,
        )

    def forget(self, robot: str) -> int:
        """Forget the memory rows of a robot; its newest frame becomes none.

        Returns how many were removed.
        """
        return self._remembering.forget(robot)

    @torch.inference_mode()
    def memory_at_boundary(self, robot: str) -> tuple[MemoryRow, ...]:
        """Return the memory rows of a capsule of this moment, with the newest frame of the robot.

        The newest first.
        """
        return self._remembering.at_boundary(robot)

    # ------------------------------------------------------------------ actions

    @torch.inference_mode()
    def denoise(
        self,
        leases: Sequence[Lease],
        deadlines: Sequence[float],
        noises: np.ndarray | None = None,
        guides: Sequence[Guide | None] = (),
    ) -> list[ActionChunk | FloatingPointError]:
        """Return a finished chunk per lease, or an empty list if the time left is too short.

        With `chunk_candidates` above 1, a chunk is the most typical one of as many as the time
        left permits (`consensus`).

        Args:
            leases: The frames to act on.
            deadlines: Deadline of each chunk (s, steady clock).
            noises: float32 [leases, chunk, padded_action_dim], with which there is one candidate;
                by default from the seed and the frame.
            guides: The actions of each arm until its chunk takes over; ignored if `rtc` is off.

        Returns:
            A chunk, or an error if its actions are not finite: a fault of one robot costs no other
            robot its chunk.

        Raises:
            ValueError: A guide does not fit.
        """
        c = self.policy.config
        leftovers = self._leftovers(leases, guides)
        began = time.monotonic()
        steps = self.budget.euler_plan(began, min(deadlines), len(leases))
        if steps == 0:
            return []
        number = 1
        if noises is None:
            numbers = doubling(self.config.chunk_candidates)
            batch = steps, len(leases), numbers
            number = self.budget.candidates(began, min(deadlines), *batch)
            seeds = [self.config.seed + i for i in range(number) for _ in leases]
            noises = self._noises([*leases] * number, seeds)
        with self.kv.reading([*leases] * number, ACTION) as read:
            rows, copies = rows_read(read)
            made = self._denoiser.run(rows, noises, steps, copies, [*leftovers] * number)
        shape = number, len(leases)
        made_actions, made_updates = (values.reshape(*shape, *values.shape[1:]) for values in made)
        chosen = consensus(made_actions[..., : c.action_dim]), np.arange(len(leases))
        normalised, updates = made_actions[chosen], made_updates[chosen]
        took = time.monotonic() - began
        self.committed += 1
        self.latency.observe('denoise_step', took / steps, number * len(leases))
        return [
            self._finite(
                ActionChunk(
                    values=self.policy.actions(values, self.states[lease.row]),
                    dt=c.action_dt,
                    stamp=lease.handle.stamp,
                    deadline=deadline,
                    sequence=lease.handle.sequence,
                    steps=steps,
                    prefill_ms=lease.handle.prefill_ms,
                    denoise_ms=took * 1e3,
                    updates=moved,
                )
            )
            for lease, deadline, values, moved in zip(
                leases, deadlines, normalised, updates, strict=True
            )
        ]

    def candidates(
        self,
        lease: Lease,
        seeds: Sequence[int],
        deadline: float = math.inf,
        guide: Guide | None = None,
    ) -> list[ActionChunk | FloatingPointError]:
        """Return the chunks of one frame from the noise of several seeds, to choose from.

        The noise depends on seed, robot and frame alone; the seed of the config is that of
        the first candidate of `denoise`. As in `denoise`, the size of a batch changes a chunk by
        rounding only.

        Args:
            lease: The frame to act on.
            seeds: Seed of each chunk, 0 to 2**64 - 1.
            deadline: Deadline of the last chunk (s, steady clock).
            guide: The actions of the arm until a chunk takes over; ignored if `rtc` is off.

        Returns:
            A chunk or an error per seed, as `denoise`, in their order; those of the first seeds if
            the time left is too short for another batch.

        Raises:
            ValueError: A seed is out of range, or the guide does not fit.
        """
        if bad := [seed for seed in seeds if not 0 <= seed < 2**64]:
            raise ValueError(f'seed must be from 0 to 2**64 - 1 (got {bad[0]})')
        made: list[ActionChunk | FloatingPointError] = []
        most = self.config.max_batch_robots * self.config.chunk_candidates
        for at in range(0, len(seeds), most):
            batch = seeds[at : at + most]
            leases, guides = [lease] * len(batch), [guide] * len(batch)
            noises = self._noises(leases, batch)
            chunks = self.denoise(leases, [deadline] * len(batch), noises, guides)
            if not chunks:
                break
            made += chunks
        return made

    @staticmethod
    def _finite(chunk: ActionChunk) -> ActionChunk | FloatingPointError:
        """Return the chunk, or an error if its actions (policy units) are not finite."""
        if np.isfinite(chunk.values).all():
            return chunk
        return FloatingPointError('actions of the policy must be finite')

    def _noises(self, leases: Sequence[Lease], seeds: Sequence[int] = ()) -> np.ndarray:
        """Return the noise of each frame by its seed, by default the config's: [leases, ...]."""
        c, frames = self.policy.config, [lease.handle for lease in leases]
        shape = c.chunk_size, c.padded_action_dim
        seeds = seeds or [self.config.seed] * len(leases)
        return np.stack(
            [
                noise(seed, frame.robot, frame.sequence, shape)
                for seed, frame in zip(seeds, frames, strict=True)
            ]
        )

    def _leftovers(
        self, leases: Sequence[Lease], guides: Sequence[Guide | None]
    ) -> list[LeftoverActions | None]:
        if self.config.rtc == 'off':
            return []
        found = []
        for lease, guide in zip(leases, guides or [None] * len(leases), strict=True):
            found.append(leftover(guide, self.policy, self.states[lease.row]))
            self.guides[lease.row] = guide
        return found

    # ------------------------------------------------------------------ language

    def open(
        self,
        handle: KvHandle,
        text: str,
        *,
        max_tokens: int = 32,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> DecodeStream:
        """Return a stream that answers `text` about the handle's frame; see `Query`.

        Raises StaleHandleError, ValueError.
        """
        query = Query(text, self.policy.question_ids(text), max_tokens, temperature, seed)
        return self.kv.create(handle, query)

    @property
    def seconds_saved(self) -> float:
        """Return the time (s) of the prefills that streams shared, at the present estimate."""
        return self.kv.stats().prefills_shared * self.latency.estimate('prefill')

    def cancel(self, stream: int) -> None:
        """End a stream. Raises KeyError."""
        self.kv.streams.release(self.kv.streams.get(stream), 'cancelled')

    def decode_fits(self, now: float) -> bool:
        """Return whether the idle time holds the next unit of language work, if there is one."""
        batch, is_alone = self.next_batch(now)
        if not batch:
            return False
        if is_alone:
            return self._begins_within(now, batch[0])
        return self.budget.admits(now, 'decode', self._decoder.padded(len(batch)))

    def _begins_within(self, now: float, stream: DecodeStream) -> bool:
        return self.budget.admits(now, 'begin', self._decoder.bucket(stream))

    def next_batch(self, now: float | None = None) -> tuple[list[DecodeStream], bool]:
        """Return the streams of the next unit of language work, and whether it is a single one.

        A single one is the oldest stream that is new or is to be compressed now. Otherwise they
        are all streams, or as many as `idle_unit_ms` holds, those that waited longest first.

        now: if given, a single stream whose unit does not fit the idle time delays no others.
        """
        decided = self.compression.decide()
        streams: list[DecodeStream] = []
        singles: list[DecodeStream] = []
        for stream in self.kv.streams.live():
            is_single = stream.is_new or decided.until_choice(stream) == 0
            (singles if is_single else streams).append(stream)
        for stream in singles:
            if now is None or self._begins_within(now, stream):
                return [stream], True
        if singles and not streams:
            return singles[:1], True
        most = self._decoder.most_within(self.budget, len(streams))
        if most < len(streams):
            streams = sorted(streams, key=attrgetter('turn'))[:most]
        return streams, False

    @torch.inference_mode()
    def decode(self) -> list[TextDelta]:
        """Run a unit of language work: the query of one stream, or `decode_steps` of all streams.

        A stream without a valid next token ends with reason 'error'. An error of the whole unit
        ends all its streams, and is raised.
        """
        batch, is_alone = self.next_batch(time.monotonic())
        try:
            moved = self._begin(batch[0]) if is_alone else self._advance(batch)
        except BaseException:  # the stream at fault is unknown
            for stream in batch:
                self.kv.streams.release(stream, 'error')
            raise
        self.committed += 1
        for stream in batch:
            stream.turn = next(self._turns)
        return self.deltas(moved)

    def _begin(self, stream: DecodeStream) -> list[DecodeStream]:
        began, bucket = time.monotonic(), self._decoder.bucket(stream)
        is_deferred = not stream.is_new
        moved = self._decoder.begin(stream)
        took = time.monotonic() - began
        self.latency.observe('begin', took, bucket)
        if is_deferred:
            self.latency.observe(CHOICE, took, bucket)
        return moved

    def _advance(self, streams: Sequence[DecodeStream]) -> list[DecodeStream]:
        began = time.monotonic()
        if not streams:
            return []
        size = self._decoder.padded(len(streams))
        decided = self.compression.decide()
        rests = [stream.query.max_tokens - len(stream.tokens) for stream in streams]
        waits = filter(None, map(decided.until_choice, streams))
        most = min(self.config.decode_steps, *rests, *waits)
        steps, kind = self.budget.times(began, 'decode', size, most), kind_of_step(streams)
        moved = self._decoder.step(streams, steps)
        self.kv.streams.token_seconds = took = (time.monotonic() - began) / steps
        self.latency.observe('decode', took, size)
        if len(streams) < (live := len(self.kv.streams.live())):
            self.budget.divided('decode', self._decoder.sizes(live))
        if kind:
            self.latency.observe(kind, took, size)
        return moved

    @property
    def compression_payoff(self) -> CompressionPayoff | None:
        """Return what compression saves a stream on this machine; None if it is not known yet."""
        return payoff(self.latency) if self.compression.decide().by_question else None

    def deltas(self, moved: Sequence[DecodeStream] = ()) -> list[TextDelta]:
        """Return the new text of these streams, and the ends of streams since the last call."""
        ended = self.kv.streams.pop_ended()
        # A stream that another thread ends from now on is reported once, with the next deltas.
        said = [self.detokenizer.delta(stream) for stream in moved if not stream.reason]
        return said + [self.detokenizer.delta(stream, stream.reason) for stream in ended]
