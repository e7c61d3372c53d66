"""The rows and decode streams of one robot, frozen and resumed: the engine's part of a capsule.

Random states are stored as facts (seeds).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied_kv.capsule import frozen_kv
from embodied_kv.capsule.capsule import CapsuleError, Fact, FrozenPart
from embodied_kv.compress.base import Statistics
from embodied_kv.engine.compression import ACTION
from embodied_kv.engine.engine import Engine
from embodied_kv.errors import ErrorCode, code_of
from embodied_kv.kv.decode_stream import DecodeStream, Query
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.runtime.stream import Stream
from embodied_kv.session import frozen_facts
from embodied_kv.types import ActionChunk, Guide


@dataclass(frozen=True)
class Branch:
    """How a resumed stream or a chunk differs from the frozen one.

    seed: 0 to 2**64 - 1; None keeps that of the stream, or of the engine's noise. Raises
    CapsuleError for another seed.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise CapsuleError(f'seed must be from 0 to 2**64 - 1 (got {self.seed})')


@dataclass(frozen=True, eq=False)
class FrozenFrame:
    """The newest frame of a capsule in a row of an engine, and what its chunk continued."""

    lease: Lease
    guide: Guide | None


class EnginePart:
    """The engine's part of a session of `robot`; every method runs on the engine thread.

    freezes_frame: whether a capsule has the row of the newest frame, which `replay`, `candidates`
    and a policy server read. On a robot that prefills its own frames, a restore does not need it.
    """

    name, depth, can_fork = 'session', 'planner', True

    def __init__(self, engine: Engine, robot: str = '', freezes_frame: bool = True) -> None:
        self._engine, self._kv, self.robot = engine, engine.kv, robot
        self.freezes_frame = freezes_frame

    @property
    def process_id(self) -> str:
        """Return the unique id of the process of the engine."""
        return self._kv.frames.process_id

    @property
    def committed(self) -> int:
        """Return the number of steps of the engine so far."""
        return self._engine.committed

    @property
    def streams_max(self) -> int:
        return self._kv.streams_max

    @property
    def chunks_max(self) -> int:
        """Return the number of chunks that one batch computes."""
        return self._engine.config.max_batch_robots

    def finish(self) -> None:
        """Wait for the device."""
        Stream.current(self._engine.policy.model.device).synchronize()

    # ------------------------------------------------------------------ freezing

    @property
    def stamp(self) -> int:
        """Return the stamp (ns) of the newest frame of the robot; 0 before the first."""
        handle = self._kv.frames.current(self.robot)
        return handle.stamp if handle else 0

    def freeze(self) -> FrozenPart:
        """Copy the live streams with their rows, and the newest frame's row; valid bytes only.

        Tensors: 'row/I/k' and 'row/I/v' [layers, kv_heads, length, head_dim], or of a compressed
        row [kv_heads, tokens of all layers, head_dim]; 'row/I/state' [state]; 'row/I/guide', the
        action prefix; 'row/I/columns' and '.../density', prompt scores; 'stream/I/k', '.../v'.
        The facts are `SessionFacts`.
        """
        streams = self.streams()
        with ExitStack() as held:
            current, action = None, None
            if self.freezes_frame:
                current = self._kv.frames.acquire_current(self.robot)
            if current is not None:
                held.enter_context(current)
                action = self._kv.copies.acquire(current.handle, ACTION)
            if action is not None:
                held.enter_context(action)
            # As in a step: streams that another thread ends are freed afterwards.
            held.callback(self._kv.streams.end_step)
            return self._frozen(self._kv.streams.grow(streams, 0), current, action)

    def _frozen(
        self, streams: Sequence[DecodeStream], current: Lease | None, action: Lease | None
    ) -> FrozenPart:
        """Freeze with leases on the newest frame and on the compressed row that actions read."""
        leases = [stream.lease for stream in streams] + [current, action]
        read = {_read_by(lease): lease for lease in leases if lease is not None}
        numbers = {what: i for i, what in enumerate(read)}
        tensors: dict[str, Tensor] = {}
        rows: list[Fact] = []
        for i, lease in enumerate(read.values()):
            name = f'row/{i}'
            handle, scores, budgets = lease.handle, self._scores(lease, streams), None
            length = handle.length
            if lease.is_copy:
                copy = lease.row
                length = int(self._kv.compressed.positions[copy])
                tensors |= frozen_kv.copied(name, *self._kv.compressed.block(copy))
                budgets = self._kv.compressed.lengths[:, copy].tolist()
            else:
                row = lease.row
                tensors |= frozen_kv.copied(name, *self._kv.prefixes.row(row))
                tensors[f'{name}/state'] = torch.from_numpy(self._engine.states[row].copy())
                if (guide := self._engine.guides.get(row)) is not None:
                    tensors[f'{name}/guide'] = _guide_tensor(guide)
                if scores is not None:
                    tensors[f'{name}/columns'] = scores.columns.clone()
                    tensors[f'{name}/density'] = scores.density.clone()
            frame = {'sequence': handle.sequence, 'stamp': handle.stamp, 'length': length}
            scored = None if scores is None else scores.queries
            rows.append({**frame, 'budgets': budgets, 'scored': scored})
        for i, stream in enumerate(streams):
            tensors |= frozen_kv.copied(f'stream/{i}', *self._kv.decode_kv.row(stream.decode_row))
        facts: Fact = {
            'rows': rows,
            'current': None if current is None else numbers[_read_by(current)],
            'action': None if action is None else numbers[_read_by(action)],
            'keep_ratio': self._keep_ratio,
            'streams': [
                {
                    'row': numbers[_read_by(stream.lease)],
                    'query': {**vars(stream.query), 'ids': list(stream.query.ids)},
                    'tokens': list(stream.tokens),
                    'said': self._engine.detokenizer.position(stream.id),
                }
                for stream in streams
            ],
        }
        return FrozenPart(tensors, facts)

    def _scores(self, lease: Lease, streams: Sequence[DecodeStream]) -> Statistics | None:
        """Return the prompt scores of a row if streams on it wait for compression."""
        decided = self._engine.compression.decide()
        waiting = (s.lease for s in streams if decided.until_choice(s) is not None)
        if _read_by(lease) not in map(_read_by, waiting):
            return None
        return self._engine.compression.prompts.get(lease.handle)

    def streams(self) -> list[DecodeStream]:
        """Return the live streams of the robot, oldest first."""
        return [s for s in self._kv.streams.live() if s.lease.handle.robot == self.robot]

    # ------------------------------------------------------------------ resuming

    def check_resumable(self, frozen: FrozenPart, branches: int = 1) -> None:
        """Raise CapsuleError for a damaged capsule, or one without room for all its streams.

        branches: the number of times that each stream would be resumed.
        """
        facts = self._check_whole(frozen)
        self._check_keep_ratio(facts)
        streams, rows = facts['streams'], facts['rows']
        if len(streams) * branches > self._kv.streams_max:
            raise CapsuleError(
                f'the capsule must resume at most {self._kv.streams_max} streams (got '
                f'{len(streams) * branches}); raise engine.streams, or the limit with '
                'kv/set_limits',
                ErrorCode.NO_ROOM,
            )
        read = {stream['row'] for stream in streams}
        needed = sum(rows[i]['budgets'] is None for i in read)
        if needed > self._kv.language_rows_max:
            raise CapsuleError(
                f'the streams need {needed} prefix rows, language may hold '
                f'{self._kv.language_rows_max}: raise engine.rows, or the limit with '
                'kv/set_limits',
                ErrorCode.NO_ROOM,
            )
        copies = [sum(budgets) for i in read if (budgets := rows[i]['budgets']) is not None]
        if not self._kv.compressed.has_room(copies):
            raise CapsuleError(
                f'the streams read {len(copies)} compressed prefixes, and there is no room for '
                'them: raise engine.compressed_rows, or engine.memory_rows',
                ErrorCode.NO_ROOM,
            )
        for stream in streams:
            try:
                self._kv.streams.check_fits(Query(**stream['query']))
            except ValueError as error:
                raise CapsuleError(f'a stream of the capsule does not fit: {error}') from error

    def _check_whole(self, frozen: FrozenPart) -> frozen_facts.SessionFacts:
        """Return the facts. Raise CapsuleError for a part that no session of this engine has."""
        model, layers = self._engine.policy.config, len(self._kv.compressed.layers)
        most = self._kv.prefixes.k.shape[3]
        bounds = frozen_facts.Bounds(model.backbone.vocab_size, most, layers)
        frozen_facts.check(frozen.facts, bounds)
        facts = frozen_facts.read(frozen)
        for i, row in enumerate(facts['rows']):
            if row['budgets'] is None:
                frozen_kv.check_row(frozen, f'row/{i}', self._kv.prefixes, row['length'])
                frozen_kv.check_tensor(frozen, f'row/{i}/state', model.state_dim)
                if (guide := f'row/{i}/guide') in frozen.tensors:
                    frozen_kv.check_tensor(frozen, guide, model.chunk_size, model.action_dim + 2)
                if row['scored'] is not None:
                    b, f32 = model.backbone, torch.float32
                    columns, density = (f'row/{i}/{name}' for name in ('columns', 'density'))
                    shape = b.layers, b.heads
                    scored = row['length'] - model.state_tokens
                    frozen_kv.check_tensor(frozen, columns, *shape, scored, dtype=f32)
                    frozen_kv.check_tensor(frozen, density, *shape, dtype=f32)
            else:
                frozen_kv.check_block(frozen, f'row/{i}', self._kv.compressed, row['budgets'])
        for i, stream in enumerate(facts['streams']):
            frozen_kv.check_row(frozen, f'stream/{i}', self._kv.decode_kv, _extent(stream))
        return facts

    @property
    def _keep_ratio(self) -> float:
        """Return the present keep ratio of language, which may change while the engine runs."""
        return self._engine.compression.keep_ratios[LANGUAGE]

    def _check_keep_ratio(self, facts: frozen_facts.SessionFacts) -> None:
        """Raise CapsuleError if a stream would be compressed with another keep ratio."""
        then, now = facts['keep_ratio'], self._keep_ratio
        decided = self._engine.compression.decide()
        waits = decided.by != 'row' and any(
            len(stream['tokens']) <= decided.after
            and facts['rows'][stream['row']]['budgets'] is None
            for stream in facts['streams']
        )
        if waits and then != now:
            raise CapsuleError(
                f'language_keep_ratio was {then} and is {now} here, and a stream of the capsule '
                f'is still to be compressed: set it to {then} with kv/set_limits, or take a new '
                'capsule',
                ErrorCode.MISMATCH,
            )

    def resume(self, frozen: FrozenPart) -> None:
        """Resume the frozen streams; the present ones of the robot end as 'replaced'.

        They also give up their rows first if there is no room for all.
        """
        present = self.streams()
        self.branch(frozen, [Branch()], present)
        for stream in present:
            self._kv.streams.release(stream, 'replaced')

    def branch(
        self,
        frozen: FrozenPart,
        branches: Sequence[Branch],
        first: Sequence[DecodeStream] = (),
    ) -> list[list[DecodeStream]]:
        """Resume each frozen stream once for every branch, in addition to all live streams.

        The branches share one copy of each row. The rows get new handles of this process with
        their old stamps; no action is made from them. If there are too many streams, those of
        `first` end as 'replaced', then those worth least are evicted. Raises CapsuleError, and
        resumes no stream, if there is no room for all.

        Returns:
            The streams, by branch.
        """
        grown: list[list[DecodeStream]] = [[] for _ in branches]
        with ExitStack() as step, ExitStack() as undo, ExitStack() as leases:
            step.callback(self._kv.streams.end_step)  # until then no stream is evicted for another
            streams = frozen_facts.read(frozen)['streams']
            rows = {
                number: leases.enter_context(self._adopt(frozen, number))
                for number in dict.fromkeys(facts['row'] for facts in streams)
            }
            wanted = len(streams) * len(branches) + len(self._kv.streams.live())
            for stream in first[: max(0, wanted - self._kv.streams_max)]:
                self._kv.streams.release(stream, 'replaced')
            for i, facts in enumerate(streams):
                for j, branch in enumerate(branches):
                    grown[j].append(self._grow(frozen, i, rows[facts['row']], branch, undo))
            if any(stream.reason for streams in grown for stream in streams):
                raise CapsuleError(
                    'streams of the capsule were evicted while it was resumed; try again',
                    ErrorCode.NO_ROOM,
                )
            undo.pop_all()
        return grown

    def _grow(
        self, frozen: FrozenPart, i: int, row: Lease, branch: Branch, undo: ExitStack
    ) -> DecodeStream:
        """Resume stream i on an adopted row, with its own decode KV; `undo` ends it."""
        facts = frozen_facts.read(frozen)['streams'][i]
        seed = {} if branch.seed is None else {'seed': branch.seed}
        lease = row.share()
        try:
            stream = self._kv.resume(lease, Query(**facts['query'] | seed), facts['tokens'])
        except ValueError as error:
            lease.release()
            raise CapsuleError(str(error), code_of(error)) from error
        undo.callback(self._kv.streams.release, stream, 'error')
        # As in a step: it keeps its row even if another thread ends it.
        if self._kv.streams.grow([stream], 0):
            frozen_kv.fill(frozen, f'stream/{i}', self._kv.decode_kv, stream.decode_row)
        self._engine.detokenizer.resume(stream, facts['said'])
        return stream

    def _adopt(self, frozen: FrozenPart, number: int, evicts: bool = True) -> Lease:
        """Write row `number` of the capsule to a row of this arena, or to a compressed row.

        evicts: as in `KvManager.reserving`.
        """
        facts, frames = frozen_facts.read(frozen)['rows'][number], self._kv.frames
        sequence, length, stamp = facts['sequence'], facts['length'], facts['stamp']
        if facts['budgets'] is not None:
            about = sequence, length, self._kv.prefixes.layout, stamp
            # The handle of a lost frame reads no row.
            gone = KvHandle(frames.process_id, -1, -1, *about, -math.inf, robot=self.robot)
            return self._adopt_copy(frozen, number, gone)
        with self._written(frozen, number, evicts) as row:
            lease = frames.adopt(row, length, robot=self.robot, sequence=sequence, stamp=stamp)
        with ExitStack() as undo:
            undo.enter_context(lease)
            if scored := facts.get('scored'):
                arena = self._kv.prefixes
                columns, density = (
                    frozen.tensors[f'row/{number}/{name}'].to(arena.device)
                    for name in ('columns', 'density')
                )
                scores = Statistics(columns, density, arena.k.shape[2], scored)
                self._engine.compression.prompts.attach(lease.handle, scores)
            undo.pop_all()
        return lease

    @contextmanager
    def _written(self, frozen: FrozenPart, number: int, evicts: bool = True) -> Iterator[int]:
        """Yield a row of this arena that holds row `number` of the capsule: commit or adopt it."""
        try:
            with self._kv.reserving(1, time.monotonic(), evicts) as (row,):
                frozen_kv.fill(frozen, f'row/{number}', self._kv.prefixes, row)
                self._engine.states[row] = frozen.tensors[f'row/{number}/state'].cpu().numpy()
                self._engine.guides.pop(row, None)  # that of the frame before
                if guide := _guide(frozen.tensors.get(f'row/{number}/guide')):
                    self._engine.guides[row] = guide
                yield row
        except OutOfRowsError as error:
            raise CapsuleError(str(error), ErrorCode.NO_ROOM) from error

    def _adopt_copy(
        self, frozen: FrozenPart, number: int, handle: KvHandle, evicts: bool = True
    ) -> Lease:
        """Write row `number` of the capsule to a compressed row of the frame `handle`."""
        facts = frozen_facts.read(frozen)['rows'][number]
        assert facts['budgets'] is not None
        copy = self._kv.copies.adopt(facts['budgets'], facts['length'], handle, evicts=evicts)
        if copy is None:
            raise CapsuleError(
                'no room for a compressed prefix: raise engine.compressed_rows', ErrorCode.NO_ROOM
            )
        with ExitStack() as undo:
            undo.enter_context(copy)
            block = self._kv.compressed.block(copy.row)
            for kind, target in zip('kv', block, strict=True):
                target.copy_(frozen.tensors[f'row/{number}/{kind}'])
            undo.pop_all()
        return copy

    # ------------------------------------------------------------------ chunks

    def replay(self, frozen: FrozenPart) -> ActionChunk:
        """Return the chunk of the frozen newest frame, for comparison; it must not be executed.

        Raises CapsuleError as `frame` and `candidates`.
        """
        with self.frame(frozen) as frame:
            return self.candidates(frame, [Branch()])[0]

    @contextmanager
    def frame(self, frozen: FrozenPart) -> Iterator[FrozenFrame]:
        """Hold the frozen newest frame in a free row; no stream and no frame is evicted for it.

        The block may end on any thread. Raises CapsuleError if the capsule has no such row, if no
        row is free, and for a damaged capsule.
        """
        facts = self._check_whole(frozen)
        number = facts['current']
        if number is None:
            raise CapsuleError(
                'the capsule has no row of the newest frame: it was taken before the first one, '
                'when only a compressed copy was left, or on a robot that prefills its own frames '
                'without store_frame; set store_frame of the node session, and take a new capsule',
                ErrorCode.NOT_FOUND,
            )
        with ExitStack() as held:
            lease = held.enter_context(self._adopt(frozen, number, evicts=False))
            if (copy := facts['action']) is not None:
                action = self._adopt_copy(frozen, copy, lease.handle, evicts=False)
                held.enter_context(action.share())
                self._kv.keep_copy([ACTION], action)
            yield FrozenFrame(lease, _guide(frozen.tensors.get(f'row/{number}/guide')))

    def candidates(self, frame: FrozenFrame, branches: Sequence[Branch]) -> list[ActionChunk]:
        """Return a chunk of the frame for every branch; see `Engine.candidates`.

        Raises CapsuleError if actions are not finite.
        """
        own = self._engine.config.seed
        seeds = [own if branch.seed is None else branch.seed for branch in branches]
        chunks: list[ActionChunk] = []
        for chunk in self._engine.candidates(frame.lease, seeds, guide=frame.guide):
            if isinstance(chunk, FloatingPointError):
                raise CapsuleError(f'the frame of the capsule gives no chunk: {chunk}')
            chunks.append(chunk)
        return chunks


def _read_by(lease: Lease) -> tuple[bool, int]:
    """Return whether a lease reads a compressed row, and the number of the row."""
    return lease.is_copy, lease.row


def _extent(facts: frozen_facts.StreamFacts) -> int:
    """Return the number of tokens in the decode KV of a frozen stream."""
    tokens = facts['tokens']
    return len(facts['query']['ids']) + len(tokens) - 1 if tokens else 0


def _guide_tensor(guide: Guide) -> Tensor:
    """Return [chunk, action_dim + 2]: the actions, their weights, and which are given."""
    given = np.arange(len(guide.actions)) < guide.delay
    columns = np.column_stack([guide.actions, guide.weights, given])
    return torch.from_numpy(columns.astype(np.float32))


def _guide(tensor: Tensor | None) -> Guide | None:
    """Return the action prefix of `_guide_tensor`."""
    if tensor is None:
        return None
    *_, weights, given = columns = tensor.cpu().numpy().T
    return Guide(columns[:-2].T, int(given.sum()), weights)
