"""One robot's session: snapshot, restore, fork and rollback, by the names of capsules.

Knows parts, the registry and the thread of the engine. Does not know what a part freezes, nor who
asks. State is copied on the engine's thread, between two steps; tiers and files are the matter of
whoever calls, who may wait. Nothing is captured or computed again.

Source: Execution-State Capsules, section 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, count
from typing import Protocol, TypeVar

import torch

from embodied_kv.capsule.capsule import Boundary, Capsule, CapsuleError
from embodied_kv.capsule.fingerprint import mismatch
from embodied_kv.capsule.part import FrozenPart, Note, Part
from embodied_kv.capsule.reentry import Decision, Depth, Limits, SceneSummary, choose_depth
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.session.engine_part import Branch
from embodied_kv.session.participant import Done, Participants
from embodied_kv.session.sight import Sight
from embodied_kv.text import shown
from embodied_kv.types import ActionChunk

T = TypeVar('T')
BY_MISSIONS = 'mission-boundary'  # how names of capsules begin that only missions take
SCENE, DEPTHS = 'scene', 'depths'  # in a capsule beside its parts
DEEP_ENOUGH = {  # what is resumed at each depth
    Depth.ACTOR: ('planner', 'actor'),
    Depth.PLANNER: ('planner',),
    Depth.HOLD: (),
}


@dataclass(frozen=True)
class Resumed:
    """What a verb did. seconds: of the engine's thread. streams: numbers of those that go on.

    notes: what parts have to say of it, and which parts of the capsule, of those that are resumed
    at that depth, found nobody.
    """

    capsule: Capsule
    decision: Decision
    streams: tuple[int, ...]
    seconds: float
    notes: tuple[str, ...] = ()


class ComputingPart(Part, Protocol):
    """The part of a session that an engine computes, here or at a policy server.

    robot: whose. process_id: of the process that computes. committed: its steps so far. stamp:
    ns, of the robot's newest frame.
    """

    robot: str

    @property
    def process_id(self) -> str: ...
    @property
    def committed(self) -> int: ...
    @property
    def stamp(self) -> int: ...
    @property
    def streams_max(self) -> int: ...
    def streams(self) -> list[DecodeStream]: ...
    def finish(self) -> None: ...


class RobotSession:
    """The parts that make up a session, and the registry that keeps its capsules.

    engine_part: rows and streams, of the engine that computes for the robot. registry: None where
    capsules are not kept yet, see `keep_in`. call: runs work on the engine's thread,
    `EngineThread.call`. limits: of re-entry. participants: the nodes that take part in it.
    sight: waits for what they see.
    """

    def __init__(
        self,
        engine_part: ComputingPart,
        registry: Registry | None,
        call: Callable[[Callable[[], T]], Future[T]],
        *,
        limits: Limits | None = None,
    ) -> None:
        self.engine_part, self._registry, self._call = engine_part, registry, call
        self.name = f'{engine_part.process_id[:8]}{engine_part.robot}'
        self.limits = limits or Limits()
        self.participants = Participants()
        self.sight = Sight(self.participants)
        self._parts: dict[str, Part] = {}  # replaced, never changed: a snapshot may be reading it
        self.register(self.engine_part)

    @property
    def registry(self) -> Registry:
        """Keeps its capsules. Raises CapsuleError where there is none."""
        if self._registry is None:
            raise CapsuleError(
                'nothing keeps capsules: configure the node session', ErrorCode.UNAVAILABLE
            )
        return self._registry

    def keep_in(self, registry: Registry | None) -> None:
        """From now on; what another one keeps is not moved."""
        self._registry = registry

    @property
    def parts(self) -> tuple[Part, ...]:
        """What goes into a capsule."""
        return tuple(self._parts.values())

    def register(self, part: Part) -> None:
        """From now on it goes into every capsule; one of that name before it does not."""
        self._parts = {**self._parts, part.name: part}

    def unregister(self, part: Part) -> None:
        """It goes into no further capsule."""
        if self._parts.get(part.name) is part:
            self._parts = {n: p for n, p in self._parts.items() if p is not part}

    # ------------------------------------------------------------------ verbs

    def snapshot(
        self, name: str, scene: SceneSummary | None = None, tier: Tier = Tier.DEVICE
    ) -> tuple[Capsule, float]:
        """Freezes the session between two steps and keeps it; also s of the engine's thread.

        name: '' for a free one made of process and boundary. Raises CapsuleError, and NoRoom.
        """
        capsule, seconds = self._on_engine(lambda: self._freeze(name, scene))
        self.registry.add(capsule, tier)
        self.participants.on_done(Done('snapshot', capsule))
        return capsule, seconds

    def restore(self, name: str, now: SceneSummary | None) -> Resumed:
        """The session goes on from the capsule, as deep as the present allows.

        now: what the robot sees and feels; None where it sees nothing. Its present streams end.
        Raises CapsuleError, with nothing changed.
        """
        capsule = self.registry.get(name)
        decision = choose_depth(_scene(capsule), now, self.limits)
        return self._told('restore', self._resume(capsule, decision))

    def rollback(self, name: str = '', but: Collection[str] = ()) -> Resumed:
        """This same session goes on from its capsule of that name, or from its newest one.

        Those that missions take count by name alone.
        What was said since is given up; the actor's state is not restored, as the world went on.
        but: names of parts that stay as they are.
        Raises CapsuleError for a capsule of another session.
        """
        capsule = self.registry.get(name or self._newest())
        if capsule.boundary.session != self.name:
            raise CapsuleError(
                f'capsule {capsule.name} is of session {capsule.boundary.session}, this is '
                f'{self.name}: a session rolls back to its own boundaries only; restore it '
                'instead',
                ErrorCode.MISMATCH,
            )
        back = self.engine_part.committed - capsule.boundary.number
        decision = Decision(Depth.PLANNER, f'{back} steps back')
        return self._told('rollback', self._resume(capsule, decision, but))

    def fork(
        self, name: str, branches: Sequence[Branch]
    ) -> tuple[list[list[DecodeStream]], float]:
        """The capsule's streams go on once for every branch, beside those that live.

        The branches share the prefix rows; decode KV alone is copied. Returns the streams by
        branch. Raises CapsuleError, with nothing changed.
        """
        if not branches:
            raise CapsuleError('a fork needs at least one branch')
        capsule = self.registry.get(name)
        frozen = self._frozen(capsule)[self.engine_part.name]

        def work() -> list[list[DecodeStream]]:
            self.engine_part.check(frozen, len(branches))
            grown = self.engine_part.branch(frozen, branches)
            self.participants.on_resumed(list(chain.from_iterable(grown)))
            return grown

        grown = self._on_engine(work)
        self.participants.on_done(Done('fork', capsule, Depth.PLANNER))
        return grown

    def replay(self, name: str) -> ActionChunk:
        """The chunk of the capsule's newest frame, made again: to compare, never to execute."""
        frozen = self._frozen(self.registry.get(name))[self.engine_part.name]
        return self._on_engine(lambda: self.engine_part.replay(frozen))[0]

    def _told(self, verb: str, resumed: Resumed) -> Resumed:
        self.participants.on_done(Done(verb, resumed.capsule, resumed.decision.depth))
        return resumed

    # ------------------------------------------------------------------ on the engine's thread

    def _on_engine(self, work: Callable[[], T]) -> tuple[T, float]:
        """Return the result when the device has made it, and s that it took.

        Another thread copies what is frozen, on another stream.
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
            name or self._free_name(number),
            Boundary(self.name, number, self.engine_part.stamp),
            self.registry.fingerprint,
            {f'{part}/{n}': t for part, f in frozen.items() for n, t in f.tensors.items()},
            {part: f.facts for part, f in frozen.items()},
        )

    def _free_name(self, number: int) -> str:
        """Return a name for a boundary; there may be capsules of it already."""
        first = f'{self.engine_part.process_id[:8]}-{number}'
        names = chain([first], (f'{first}-{i}' for i in count(2)))
        return next(name for name in names if name not in self.registry)

    def _resume(self, capsule: Capsule, decision: Decision, but: Collection[str] = ()) -> Resumed:
        frozen = self._frozen(capsule)
        deep = DEEP_ENOUGH[decision.depth]
        named = frozen.keys() - {SCENE, DEPTHS, *but}
        parts = [p for p in self._parts.values() if p.depth in deep and p.name in named]

        def work() -> tuple[tuple[int, ...], list[Note]]:
            for part in parts:
                part.check(frozen[part.name])
            notes = [self._resume_part(part, frozen[part.name]) for part in parts]
            if decision.depth is Depth.HOLD:
                self.participants.on_hold()
            streams = tuple(s.id for s in self.engine_part.streams()) if parts else ()
            return streams, notes

        (streams, notes), seconds = self._on_engine(work)
        notes = [note() if callable(note) else note for note in notes]
        missing, depths = sorted(named - self._parts.keys()), _depths(capsule)
        notes += [
            f'nobody here goes on with its part {shown(name)}'
            for name in missing
            if depths.get(name, 'planner') in deep
        ]
        return Resumed(capsule, decision, streams, seconds, tuple(filter(None, notes)))

    def _resume_part(self, part: Part, frozen: FrozenPart) -> Note:
        note = part.resume(frozen)
        if part is self.engine_part:  # also if another part fails, its streams go on
            self.participants.on_resumed(self.engine_part.streams())
        return note

    def _frozen(self, capsule: Capsule) -> Mapping[str, FrozenPart]:
        """The parts of a capsule by name. Raises CapsuleError for another engine's."""
        if capsule.fingerprint != self.registry.fingerprint:
            raise CapsuleError(
                f'capsule {capsule.name} '
                f'{mismatch(capsule.fingerprint, self.registry.fingerprint)}',
                ErrorCode.MISMATCH,
            )
        parts: dict[str, dict] = {part: {} for part in capsule.facts}
        for name, tensor in capsule.tensors.items():
            part, _, rest = name.partition('/')
            parts.setdefault(part, {})[rest] = tensor
        return {part: FrozenPart(t, capsule.facts.get(part)) for part, t in parts.items()}

    def _newest(self) -> str:
        taken = [r for r in self.registry.entries() if not r.name.startswith(BY_MISSIONS)]
        own = [r for r in taken if r.boundary.session == self.name]
        if not own:
            raise CapsuleError(
                f'session {self.name} has no capsule: take a snapshot first', ErrorCode.NOT_FOUND
            )
        return max(own, key=lambda record: record.boundary.number).name


def _depths(capsule: Capsule) -> Mapping[str, str]:
    """By name, from which depth on its parts are resumed, if that is known."""
    depths = capsule.facts.get(DEPTHS)
    return depths if isinstance(depths, dict) else {}


def _scene(capsule: Capsule) -> SceneSummary | None:
    """What the robot saw and felt at the boundary, if that is known."""
    if SCENE not in capsule.facts:
        return None
    start = f'{SCENE}/'
    arrays = {
        name.removeprefix(start): tensor.cpu().numpy()
        for name, tensor in capsule.tensors.items()
        if name.startswith(start)
    }
    return SceneSummary.of(arrays, capsule.facts[SCENE])
