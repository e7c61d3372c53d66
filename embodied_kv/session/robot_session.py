"""The session of one robot: snapshot, restore, fork and rollback, by the names of capsules.

State is copied on the engine thread, between two steps; tiers and files are used on the thread of
the caller, which may wait. No CUDA graph is captured again, and nothing is recomputed.

Source: Execution-State Capsules, section 3.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch

from embodied_kv.capsule.capsule import Boundary, Capsule, CapsuleError, FrozenPart, Note, Part
from embodied_kv.capsule.reentry import Decision, Depth, Limits, SceneSummary, choose_depth
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.session.engine_part import Branch, EnginePart
from embodied_kv.session.participant import Done, Participants, SceneObserver
from embodied_kv.text import shown
from embodied_kv.types import ActionChunk

T = TypeVar('T')
MISSION_PREFIX = 'mission-boundary'  # prefix of the names of capsules that missions take
SCENE, DEPTHS = 'scene', 'depths'  # in a capsule, in addition to its parts
RESUMED_DEPTHS = {  # depths of the parts that are resumed at each depth
    Depth.ACTOR: ('planner', 'actor'),
    Depth.PLANNER: ('planner',),
    Depth.HOLD: (),
}


@dataclass(frozen=True)
class Resumed:
    """The result of a restore or rollback.

    Attributes:
        streams: The ids of the resumed streams.
        seconds: Time on the engine thread.
        notes: Remarks of the parts, and the parts of the capsule that no node resumes.
    """

    capsule: Capsule
    decision: Decision
    streams: tuple[int, ...]
    seconds: float
    notes: tuple[str, ...] = ()


class BranchingPart(Part, Protocol):
    """A part whose frozen state is continued in branches next to the state of the session."""

    def branch(self, frozen: FrozenPart, branches: Sequence[Any], /) -> list[Any]:
        """Return the result of each branch, on the thread of the client. Raises CapsuleError."""


@runtime_checkable
class WatchedPart(Protocol):
    """A part that is not resumed if the robot gets other orders during the restore."""

    def orders(self) -> object:
        """Return a value that differs once an operator or a client has given other orders."""


class Call(Protocol):
    """Runs work on the engine thread."""

    def __call__(self, work: Callable[[], T], /) -> Future[T]: ...


class RobotSession:
    """The parts of the session of a robot, and the registry that stores its capsules.

    Args:
        engine_part: The rows and streams of the engine that computes for the robot, or a part with
            the same methods for the engine of a policy server.
        registry: None until `set_registry` sets one.
        call: As `EngineThread.call`.
    """

    def __init__(self, engine_part: EnginePart, registry: Registry | None, call: Call) -> None:
        self.engine_part, self._registry, self._call = engine_part, registry, call
        self.name = f'{engine_part.process_id[:8]}{engine_part.robot}'
        self.limits = Limits()
        self.participants = Participants()
        self.observer = SceneObserver(self.participants)
        self._parts: dict[str, Part] = {}  # immutable: a snapshot may be iterating
        self.register(self.engine_part)

    @property
    def registry(self) -> Registry:
        """Return the registry of its capsules. Raises CapsuleError if there is none."""
        if self._registry is None:
            raise CapsuleError(
                'no registry stores capsules; configure the node session', ErrorCode.UNAVAILABLE
            )
        return self._registry

    def set_registry(self, registry: Registry | None) -> None:
        """Set the registry for the next verbs; capsules of the previous one are not moved."""
        self._registry = registry

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts that go into a capsule."""
        return tuple(self._parts.values())

    def register(self, part: Part) -> None:
        """Add a part to every later capsule, in place of a part of the same name."""
        self._parts = {**self._parts, part.name: part}

    def unregister(self, part: Part) -> None:
        """Remove a part from every later capsule."""
        if self._parts.get(part.name) is part:
            self._parts = {n: p for n, p in self._parts.items() if p is not part}

    # ------------------------------------------------------------------ verbs

    def snapshot(
        self, name: str, scene: SceneSummary | None = None, tier: Tier = Tier.DEVICE
    ) -> tuple[Capsule, float]:
        """Freeze the session between two steps and store it; return also the engine time (s).

        name: '' for a free name made of process and boundary. Raises CapsuleError.
        """
        capsule, seconds = self._on_engine(lambda: self._freeze(name, scene))
        if not name:  # names of capsules are read from the disk, so not on the engine thread
            capsule = replace(capsule, name=self._free_name(capsule.boundary.number))
        self.registry.add(capsule, tier)
        self.participants.on_done(Done('snapshot', capsule))
        return capsule, seconds

    def restore(self, name: str, now: SceneSummary | None) -> Resumed:
        """Resume from a capsule, as deep as the present scene allows; present streams end.

        now: the present scene, None if there is none. If it raises CapsuleError, nothing changes.

        A policy server may take a minute for its part. Parts for which the capsule is too old by
        then are not resumed, nor are instruction and actions if the robot got other orders.
        """
        began, orders = time.monotonic(), self._orders()
        capsule = self.registry.get(name)
        then = _scene(capsule)

        def decision() -> Decision:
            later = round((time.monotonic() - began) * 1e9)
            scene = now and replace(now, stamp=now.stamp + later)
            return choose_depth(then, scene, self.limits)

        return self._resume('restore', capsule, decision, orders)

    def rollback(self, name: str = '', exclude: Collection[str] = ()) -> Resumed:
        """Resume from a capsule of this session, or from the newest one that no mission took.

        Text since then is discarded. The state of the actor is not restored, because the world has
        changed. exclude: names of parts that stay unchanged. Raises CapsuleError for a capsule of
        another session.
        """
        orders = self._orders()
        capsule = self.registry.get(name or self.newest())
        if capsule.boundary.session != self.name:
            raise CapsuleError(
                f'capsule {capsule.name} is of session {capsule.boundary.session}, this is '
                f'{self.name}: a session rolls back to its own boundaries only; restore it '
                'instead',
                ErrorCode.MISMATCH,
            )
        back = self.engine_part.committed - capsule.boundary.number
        decision = Decision(Depth.PLANNER, f'{back} steps back')
        return self._resume('rollback', capsule, lambda: decision, orders, exclude)

    def fork(
        self, name: str, branches: Sequence[Branch]
    ) -> tuple[list[list[DecodeStream]], float]:
        """Resume the streams of a capsule once for every branch, in addition to the live ones.

        The branches share the prefix rows; only decode KV is copied. Returns the streams by
        branch, and the time (s) on the engine thread. If it raises CapsuleError, nothing changes.
        """
        capsule, frozen = self._forked(name, self.engine_part.name, branches)

        def work() -> list[list[DecodeStream]]:
            self.engine_part.check_resumable(frozen, len(branches))
            grown = self.engine_part.branch(frozen, branches)
            self.participants.on_resumed(list(chain.from_iterable(grown)))
            return grown

        grown = self._on_engine(work)
        self.participants.on_done(Done('fork', capsule, Depth.PLANNER))
        return grown

    def fork_part(self, name: str, part: str, branches: Sequence[Any]) -> list[Any]:
        """Continue what another part has in a capsule once for every branch.

        The session does not change. Returns the result of each branch, and raises CapsuleError, as
        the part does; also if no active node has registered the part.
        """
        capsule, frozen = self._forked(name, part, branches)
        if part not in self._parts:
            raise CapsuleError(
                f'a node must be active to continue the part {part} (got none); activate it',
                ErrorCode.UNAVAILABLE,
            )
        done = cast(BranchingPart, self._parts[part]).branch(frozen, branches)
        self.participants.on_done(Done('fork', capsule, Depth.PLANNER))
        return done

    def fork_chunk(self, name: str, branches: Sequence[Branch]) -> tuple[list[ActionChunk], float]:
        """Compute the chunk of a capsule's newest frame for every branch, from its noise.

        The chunks are candidates to compare; they must not be executed. The session does not
        change. Each batch is one job of the engine thread, so an action waits for at most one.
        Returns also the time (s) on the engine thread. Raises CapsuleError.
        """
        part = self.engine_part
        capsule, frozen = self._forked(name, part.name, branches)
        made: list[ActionChunk] = []
        with ExitStack() as held:
            adopt = partial(held.enter_context, part.frame(frozen))
            frame, seconds = self._on_engine(adopt)
            for at in range(0, len(branches), part.chunks_max):
                batch = branches[at : at + part.chunks_max]
                chunks, took = self._on_engine(partial(part.candidates, frame, batch))
                made, seconds = made + chunks, seconds + took
        self.participants.on_done(Done('fork', capsule, Depth.PLANNER))
        return made, seconds

    def _forked(self, name: str, part: str, branches: Sequence[Any]) -> tuple[Capsule, FrozenPart]:
        """Return a capsule, and the part of it that is to be continued. Raises CapsuleError."""
        if not branches:
            raise CapsuleError('a fork needs at least one branch')
        if not self.engine_part.can_fork:
            raise CapsuleError(
                'a policy server cannot fork a capsule; restore it, or fork a capsule of a robot '
                'with an engine of its own',
                ErrorCode.UNAVAILABLE,
            )
        capsule = self.registry.get(name)
        if (frozen := self._frozen(capsule).get(part)) is None:
            raise CapsuleError(
                f'the capsule must have a part {part} (got none); take a new capsule while the '
                'node of that part is active',
                ErrorCode.NOT_FOUND,
            )
        return capsule, frozen

    def replay(self, name: str) -> ActionChunk:
        """Return the chunk of the newest frame of a capsule, for comparison; never execute it."""
        frozen = self._frozen(self.registry.get(name))[self.engine_part.name]
        return self._on_engine(lambda: self.engine_part.replay(frozen))[0]

    # ------------------------------------------------------------------ on the engine's thread

    def _on_engine(self, work: Callable[[], T]) -> tuple[T, float]:
        """Return the result when the device has completed it, and the seconds that it took.

        The device must be done, because another thread copies frozen tensors on another stream.
        """

        def timed() -> tuple[T, float]:
            began = time.monotonic()
            with torch.inference_mode():
                result = work()
            self.engine_part.finish()
            return result, time.monotonic() - began

        return self._call(timed).result()

    def _freeze(self, name: str, scene: SceneSummary | None) -> Capsule:
        parts = self.parts
        frozen = {part.name: part.freeze() for part in parts}
        frozen[DEPTHS] = FrozenPart(facts={part.name: part.depth for part in parts})
        if scene is not None:
            arrays = {n: torch.from_numpy(a.copy()) for n, a in scene.arrays().items()}
            frozen[SCENE] = FrozenPart(arrays, scene.facts())
        number = self.engine_part.committed
        return Capsule(
            name,
            Boundary(self.name, number, self.engine_part.stamp),
            self.registry.fingerprint,
            {f'{part}/{n}': t for part, f in frozen.items() for n, t in f.tensors.items()},
            {part: f.facts for part, f in frozen.items()},
        )

    def _free_name(self, number: int) -> str:
        """Return an unused name for a boundary."""
        first = f'{self.engine_part.process_id[:8]}-{number}'
        names = chain([first], (f'{first}-{i}' for i in count(2)))
        return next(name for name in names if name not in self.registry)

    def _orders(self) -> dict[str, object]:
        """Return the present orders of the robot, by the part that watches them."""
        return {p.name: p.orders() for p in self.parts if isinstance(p, WatchedPart)}

    def _resume(
        self,
        verb: str,
        capsule: Capsule,
        decide: Callable[[], Decision],
        orders: Mapping[str, object],
        exclude: Collection[str] = (),
    ) -> Resumed:
        frozen, deep = self._frozen(capsule), RESUMED_DEPTHS[decide().depth]
        named = frozen.keys() - {SCENE, DEPTHS, *exclude}
        parts = [p for p in self._parts.values() if p.depth in deep and p.name in named]

        def work() -> tuple[tuple[int, ...], list[Note], Decision]:
            for part in parts:
                part.check_resumable(frozen[part.name])
            first = [p for p in parts if p is self.engine_part]  # may wait for a policy server
            notes = [self._resume_part(part, frozen[part.name]) for part in first]
            late, same = decide(), self._orders() == orders
            for part in parts:
                if part in first:
                    continue
                if part.depth not in RESUMED_DEPTHS[late.depth]:
                    notes.append(f'the capsule is too old by now for its part {part.name}')
                elif isinstance(part, WatchedPart) and not same:
                    notes.append(
                        f'the robot got other orders, so its part {part.name} is left out'
                    )
                else:
                    notes.append(self._resume_part(part, frozen[part.name]))
            if late.depth is Depth.HOLD:
                self.participants.on_hold()
            streams = tuple(s.id for s in self.engine_part.streams()) if parts else ()
            return streams, notes, late

        (streams, notes, decision), seconds = self._on_engine(work)
        told = [note() if callable(note) else note for note in notes]
        depths = capsule.facts.get(DEPTHS)
        depths = depths if isinstance(depths, dict) else {}
        told += [
            f'no active node resumes its part {shown(name)}'
            for name in sorted(named - self._parts.keys())
            if depths.get(name, 'planner') in deep
        ]
        self.participants.on_done(Done(verb, capsule, decision.depth))
        return Resumed(capsule, decision, streams, seconds, tuple(filter(None, told)))

    def _resume_part(self, part: Part, frozen: FrozenPart) -> Note:
        note = part.resume(frozen)
        if part is self.engine_part:  # its streams are resumed even if another part fails
            self.participants.on_resumed(self.engine_part.streams())
        return note

    @staticmethod
    def _frozen(capsule: Capsule) -> Mapping[str, FrozenPart]:
        """Return the parts of a capsule by name."""
        parts: dict[str, dict[str, torch.Tensor]] = {part: {} for part in capsule.facts}
        for name, tensor in capsule.tensors.items():
            part, _, rest = name.partition('/')
            parts.setdefault(part, {})[rest] = tensor
        return {part: FrozenPart(t, capsule.facts.get(part)) for part, t in parts.items()}

    def newest(self) -> str:
        """Return the name of its newest capsule, except those of missions. Raises CapsuleError."""
        taken = [r for r in self.registry.entries() if not r.name.startswith(MISSION_PREFIX)]
        own = [r for r in reversed(taken) if r.boundary.session == self.name]
        if not own:
            raise CapsuleError(
                f'session {self.name} has no capsule: take a snapshot first', ErrorCode.NOT_FOUND
            )
        return max(own, key=lambda record: record.boundary.number).name


def _scene(capsule: Capsule) -> SceneSummary | None:
    """Return the scene at the boundary, if it is known."""
    if SCENE not in capsule.facts:
        return None
    start = f'{SCENE}/'
    arrays = {
        name.removeprefix(start): tensor.cpu().numpy()
        for name, tensor in capsule.tensors.items()
        if name.startswith(start)
    }
    return SceneSummary.of(arrays, capsule.facts[SCENE])


class StepCheckpoints:
    """Capsules before the steps of a mission, at most one at a time. For one thread.

    Their names are `name` and a number. `tier` stores them, or the host if the session has no
    such tier.
    """

    def __init__(self, session: RobotSession, name: str, tier: Tier) -> None:
        self._session, self._name, self._tier = session, name, tier
        self._newest = ''  # name of the last capsule that was taken here

    def snapshot(self, scene: Callable[[], SceneSummary | None]) -> Tier:
        """Take a capsule with the present `scene`, and return the tier that stores it.

        Earlier ones, of any process, are dropped afterwards unless pinned, so one exists at any
        moment, even if the process is killed. Raises CapsuleError, and what `scene` raises; then
        `roll_back` is impossible.
        """
        self._newest = ''
        now, before = scene(), self._numbers()
        name = f'{self._name}-{max(before, default=0) + 1}'
        has = self._session.registry.capacities.of
        tier = self._tier if has(self._tier) or not has(Tier.HOST) else Tier.HOST
        self._session.snapshot(name, now, tier)
        self._newest = name
        for number in before:
            with suppress(CapsuleError):  # it is pinned, or was dropped in the meantime
                self._session.registry.drop(f'{self._name}-{number}')
        return tier

    def roll_back(self, exclude: Collection[str] = ()) -> None:
        """Roll the session back to the last capsule. Raises CapsuleError if there is none.

        exclude: as of `RobotSession.rollback`.
        """
        if not self._newest:
            raise CapsuleError('no boundary was taken', ErrorCode.NOT_FOUND)
        self._session.rollback(self._newest, exclude)

    def _numbers(self) -> list[int]:
        own = re.compile(rf'{re.escape(self._name)}-(\d{{1,9}})', re.ASCII)
        found = map(own.fullmatch, self._session.registry.names())
        return [int(match[1]) for match in found if match]
