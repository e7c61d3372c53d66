"""The session node: snapshot, restore, fork and rollback of a robot's session as services.

The module knows services and parameters, but not what a capsule contains. A separate thread serves
the node, because its callbacks wait for the engine thread and for files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.copies import CapsuleRecord
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.reentry import Depth, Limits
from embodied_kv.capsule.registry import DevicePool, Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities
from embodied_kv.msg import CapsuleEvent
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.lifecycle_node import OK, SuiteNode
from embodied_kv.nodes.common.parameters import one_of, param
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.plan import BranchAnswer, Choice, PlanBranch
from embodied_kv.session.engine_part import Branch
from embodied_kv.session.participant import Done, Participant
from embodied_kv.session.robot_session import MISSION_PREFIX, Resumed
from embodied_kv.srv import (
    CapsuleDrop,
    CapsuleFork,
    CapsuleList,
    CapsuleMove,
    CapsulePin,
    CapsuleRestore,
    CapsuleRollback,
    CapsuleSnapshot,
)

if TYPE_CHECKING:
    from embodied_kv.capsule.tiers import Policy

MIB = 2**20
CAPACITY = (-1, 2**30)  # MiB
BRANCHES = 64  # maximum number of branches of a plan or a chunk


@dataclass(frozen=True)
class SessionParams:
    """Parameters of the storage of capsules, and limits for restoring them."""

    capsule_directory: str = param(
        '~/.ros/embodied_kv/capsules',
        'Directory of the disk tier; a suite with a namespace uses a subdirectory of that name. '
        "'': no disk tier",
        old=('folder',),
    )
    default_tier: str = param(
        'device',
        'Tier of a snapshot that names none: device, host or disk',
        'live',
        old=('tier',),
        check=Tier,
    )
    device_mib: int = param(
        256, 'Capacity (MiB) of the device tier; 0: no such tier, -1: unbounded', range=CAPACITY
    )
    host_mib: int = param(
        1024, 'Capacity (MiB) of the host tier; 0: no such tier, -1: unbounded', range=CAPACITY
    )
    disk_mib: int = param(
        8192, 'Capacity (MiB) of the disk tier; 0: no such tier, -1: unbounded', range=CAPACITY
    )
    eviction_policy: str = param(
        'demote',
        'What a full tier does with a new capsule. refuse: refuse it; demote: move the least '
        'recently used ones to the next tier; drop: the same, and drop what leaves the last tier',
        old=('policy',),
    )
    store_frame: bool = param(
        False,
        "Store the row of the newest frame in each of the robot's capsules, from which "
        'capsule/fork computes candidate chunks',
        'live',
    )
    max_joint_distance: float = param(
        Limits.max_joint_distance,
        'Maximum joint displacement (rad or m) for which a restore resumes the action stream',
        'live',
        range=(0.0, 10.0),
        old=('joint_distance',),
    )
    max_image_change: float = param(
        Limits.max_image_change,
        'Maximum change of a thumbnail pixel, 0 to 1, for which a restore resumes the action '
        'stream',
        'live',
        range=(0.0, 1.0),
        old=('image_change',),
    )
    max_action_resume_age: float = param(
        Limits.max_action_resume_age,
        'Maximum age (s) of a capsule for which a restore resumes the action stream',
        'live',
        range=(0.0, 1e9),
        old=('max_age', 'age'),
    )
    max_planner_resume_age: float = param(
        Limits.max_planner_resume_age,
        'Maximum age (s) of a capsule for which a restore resumes the planner',
        'live',
        range=(0.0, 1e9),
        old=('max_planner_age', 'planner_age'),
    )

    @property
    def capacities(self) -> TierCapacities:
        """Return the capacity (bytes) of each tier."""
        mib = {'device': self.device_mib, 'host': self.host_mib, 'disk': self.disk_mib}
        bounds = {tier: None if most < 0 else most * MIB for tier, most in mib.items()}
        return TierCapacities(**bounds, policy=cast('Policy', self.eviction_policy))

    @property
    def limits(self) -> Limits:
        """Return the limits within which a restore resumes actions and planner."""
        return Limits(
            self.max_joint_distance,
            self.max_image_change,
            self.max_action_resume_age,
            self.max_planner_resume_age,
        )


class Session(SuiteNode, Participant):
    """Serves `capsule/*`, and publishes each completed operation on `capsule/events`."""

    may_wait = True

    def __init__(self, **arguments: object) -> None:
        super().__init__('session', SessionParams, **arguments)

    def find_host(self) -> Any:
        host: EngineHost = super().find_host()
        _ = host.fingerprint  # reads every weight, which takes long
        return host

    def setup(self) -> None:
        params = self.params.read(SessionParams)
        folder = Path(params.capsule_directory).expanduser() / self.robot.strip('/')
        self._session = self.host.session(self.robot)
        self._release.callback(self._free_capsules)
        self._registry = Registry(
            self.host.fingerprint,
            params.capacities,
            Disk(folder) if params.capsule_directory else None,
            device=self.host.memory_device,
        )
        self._release.callback(self._registry.close)
        if self.host.kv_budget is not None:
            pool = DevicePool(self._registry, self.host.kv_budget)
            self._release.callback(self.host.kv_budget.leave, pool)
        self._session.limits = params.limits
        self._store_frame(params.store_frame)
        self.params.watch('store_frame', self._store_frame)
        self._session.set_registry(self._registry)
        self._release.callback(self._session.set_registry, None)
        self._events = self.publisher(CapsuleEvent, 'capsule/events', qos.TEXT)
        self.serve_all(
            'capsule',
            {
                'snapshot': (CapsuleSnapshot, self._snapshot),
                'restore': (CapsuleRestore, self._restore),
                'rollback': (CapsuleRollback, self._rollback),
                'fork': (CapsuleFork, self._fork),
                'list': (CapsuleList, self._list),
                'pin': (CapsulePin, self._pin),
                'move': (CapsuleMove, self._move),
                'drop': (CapsuleDrop, self._drop),
            },
        )

    def _free_capsules(self) -> None:
        """Free the memory of the capsules; those on the disk outlive it."""
        self.__dict__.pop('_registry', None)

    def start(self) -> None:
        self._session.participants.join(self)

    def stop(self) -> None:
        self._session.participants.leave(self)

    def _store_frame(self, stores: bool) -> None:
        self._session.engine_part.freezes_frame = stores

    def on_done(self, done: Done) -> None:
        boundary = done.capsule.boundary
        event = CapsuleEvent(
            operation=done.verb,
            name=done.capsule.name,
            boundary=boundary.number,
            session=boundary.session,
            depth='' if done.depth is None else str(done.depth),
        )
        event.header.stamp = self.get_clock().now().to_msg()
        self._events.publish(event)

    # ------------------------------------------------------------------ the session

    def _snapshot(
        self, request: CapsuleSnapshot.Request, response: CapsuleSnapshot.Response
    ) -> None:
        if request.name.startswith(MISSION_PREFIX):
            raise CapsuleError(
                f'only missions name capsules {MISSION_PREFIX}…: choose another name'
            )
        tier = Tier(request.tier or self.params.read(SessionParams).default_tier)
        capsule, seconds = self._session.snapshot(
            request.name, self._session.observer.present_scene(), tier
        )
        record = self._record(capsule.name)
        conversions.fill_capsule(response, record, seconds)
        response.message = (
            f'capsule {record.name}: {record.bytes / MIB:.2f} MiB at boundary '
            f'{record.boundary.number}, stored in the {record.tier} tier'
        )

    def _restore(self, request: CapsuleRestore.Request, response: CapsuleRestore.Response) -> None:
        self._session.limits = self.params.read(SessionParams).limits
        known = self._found(request.name)  # the restore itself may evict it
        resumed = self._session.restore(request.name, self._session.observer.present_scene())
        self._fill_resumed(response, resumed, known)

    def _rollback(
        self, request: CapsuleRollback.Request, response: CapsuleRollback.Response
    ) -> None:
        known = self._found(request.name or self._session.newest())
        self._fill_resumed(response, self._session.rollback(request.name), known)

    def _fill_resumed(
        self,
        response: CapsuleRestore.Response | CapsuleRollback.Response,
        resumed: Resumed,
        known: CapsuleRecord | None,
    ) -> None:
        record = self._found(resumed.capsule.name) or known
        if record is None:
            raise LookupError(f'capsule {resumed.capsule.name} is resumed, and evicted since')
        conversions.fill_capsule(response, record, resumed.seconds, resumed.decision.depth)
        response.streams = resumed.streams
        remarks = resumed.decision.reason, _going_on(resumed.streams), *resumed.notes
        response.message = '; '.join(remarks)
        for note in resumed.notes:
            self.log_info('resumed', f'capsule {record.name}: {note}')

    def _fork(self, request: CapsuleFork.Request, response: CapsuleFork.Response) -> None:
        forks = {
            'streams': self._fork_streams,
            'plan': self._fork_plan,
            'chunk': self._fork_chunk,
        }
        kind = request.kind or 'streams'
        one_of([*forks])(kind)
        if kind != 'plan' and (request.questions or request.temperature):
            raise ValueError(f'questions and temperature must be empty for kind {kind}')
        known = self._found(request.name)
        seconds = forks[kind](request, response)
        record = known or self._record(request.name)
        conversions.fill_capsule(response, record, seconds, Depth.PLANNER)

    def _fork_streams(self, request: CapsuleFork.Request, response: CapsuleFork.Response) -> float:
        branches = _seeded(request, self._session.engine_part.streams_max or BRANCHES)
        grown, seconds = self._session.fork(request.name, branches)
        response.streams_per_branch = len(grown[0])
        response.streams = [stream.id for streams in grown for stream in streams]
        response.message = f'{len(grown)} branches; {_going_on(response.streams)}'
        return seconds

    def _fork_plan(self, request: CapsuleFork.Request, response: CapsuleFork.Response) -> float:
        if request.seeds and not request.temperature:
            raise ValueError('temperature must be > 0 for seeds (got 0, which is greedy)')
        count = _count(request, BRANCHES)
        questions = [*request.questions] or [''] * count
        choices = [Choice(request.temperature, seed) for seed in [*request.seeds] or [0] * count]
        began = time.monotonic()
        branches = [*map(PlanBranch, questions, choices)]
        answers: list[BranchAnswer] = self._session.fork_part(
            request.name, MemoryPart.name, branches
        )
        response.plans = [answer.text for answer in answers]
        response.complete = [answer.whole for answer in answers]
        response.message = f'{count} branches; {sum(response.complete)} complete answers'
        return time.monotonic() - began

    def _fork_chunk(self, request: CapsuleFork.Request, response: CapsuleFork.Response) -> float:
        chunks, seconds = self._session.fork_chunk(request.name, _seeded(request, BRANCHES))
        conversions.fill_candidates(chunks, self.embodiment, response)
        response.message = (
            f'{len(chunks)} candidates for frame {response.sequence}, which no node executes'
        )
        return seconds

    # ------------------------------------------------------------------ the registry

    def _list(self, _: CapsuleList.Request, response: CapsuleList.Response) -> None:
        records = self._registry.entries()
        response.capsules = [conversions.capsule_message(record) for record in records]
        named = ', '.join(f'{record.name} ({record.tier})' for record in records) or 'no capsule'
        response.message = f'{named}; {sum(r.bytes for r in records) / MIB:.2f} MiB'

    def _pin(self, request: CapsulePin.Request, response: CapsulePin.Response) -> None:
        self._registry.pin(request.name, request.pinned)
        conversions.fill_capsule(response, self._record(request.name))
        becomes = 'is pinned' if request.pinned else 'may be evicted'
        response.message = f'capsule {request.name} {becomes}'

    def _move(self, request: CapsuleMove.Request, response: CapsuleMove.Response) -> None:
        self._registry.move(request.name, Tier(request.tier))
        conversions.fill_capsule(response, self._record(request.name))
        response.message = f'capsule {request.name} is stored in the {request.tier} tier'

    def _drop(self, request: CapsuleDrop.Request, response: CapsuleDrop.Response) -> None:
        record = next((r for r in self._registry.entries() if r.name == request.name), None)
        self._registry.drop(request.name)
        if record is not None:  # None for a damaged file
            conversions.fill_capsule(response, record)
        response.name, response.message = request.name, f'capsule {request.name} is dropped'

    def _record(self, name: str) -> CapsuleRecord:
        """Return the record of a capsule. Raises LookupError if it was evicted just now."""
        if (record := self._found(name)) is None:
            raise LookupError(f'capsule {name} was evicted for another one')
        return record

    def _found(self, name: str) -> CapsuleRecord | None:
        records = self._registry.entries()
        return next((record for record in records if record.name == name), None)

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        used, capacities = self._registry.used, self._registry.capacities
        values: dict[str, object] = {
            f'{tier} (MiB)': f'{used(tier) / MIB:.1f} of {capacities.of(tier) / MIB:g}'
            for tier in Tier
        }
        return OK, f'capsules: {len(self._registry.entries())}', values


def _count(request: CapsuleFork.Request, most: int) -> int:
    """Return the number of branches. Raises ValueError unless it is at most `most`, one each."""
    given = {'seeds': len(request.seeds), 'questions': len(request.questions)}
    count = request.branches or max(given.values())
    if count > most:
        raise ValueError(f'branches must be at most {most} (got {count})')
    for name, number in given.items():
        if number not in (0, count):
            raise ValueError(f'{number} {name} for {count} branches: give one each')
    return count


def _seeded(request: CapsuleFork.Request, most: int) -> list[Branch]:
    """Return a branch for each seed of a request, or branches without seeds."""
    count = _count(request, most)
    return [Branch(seed) for seed in [*request.seeds] or [None] * count]


def _going_on(streams: Sequence[int]) -> str:
    if not streams:
        return 'no stream goes on'
    return f'going on: stream{"s" * (len(streams) > 1)} {", ".join(map(str, streams))}'
