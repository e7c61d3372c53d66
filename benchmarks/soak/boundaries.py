"""The calls that fail now and then: one at every boundary where a failure can occur in service.

Knows attributes of the parts, by name. Does not know how a failure is handled.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.common.hostile_device import HostileDevice
from benchmarks.soak.faults import Faults, InjectedError, full, unreadable
from benchmarks.soak.world import World
from embodied_kv import storage
from embodied_kv.capsule import frozen_kv
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.runtime.graph_cache import Graph

RATES = {  # share of calls that fail
    'graph': 0.003,  # of each kind: a prefill, an Euler step, a decode step
    'compression gather': 0.01,
    'capsule freeze': 0.01,
    'capsule fill': 0.01,
    'disk write': 0.05,
    'disk sync': 0.01,
    'disk read': 0.01,
    'database': 0.01,
    'operation': 5e-5,  # of any job and load, on a hostile device
}


class FullDatabaseError(InjectedError, RobotMemoryError):
    """The error of a transaction on a full disk."""


def inject(faults: Faults, world: World, device: HostileDevice | None = None) -> None:
    """Make calls fail from now on, until the faults end.

    The world itself wraps capsule copies, planner steps and listeners. device: the hostile device
    on which the world computes, if there is one.
    """
    if device is not None:
        _wrap(faults, device, 'tick', 'operation')
    _computation(faults, world)
    _disk(faults)
    records = world.planning.memory.store._records  # each of its changes is one transaction
    _wrap(faults, records, 'change', 'database', FullDatabaseError)


def _computation(faults: Faults, world: World) -> None:
    replay = Graph.replay

    def risky(graph: Graph) -> None:
        kind = graph.name.rpartition(' ')[0]
        faults.strike(f'graph: {kind}', RATES['graph'])
        replay(graph)

    faults.replace(Graph, 'replay', risky)
    _wrap(faults, world.compressed, 'gather', 'compression gather')
    _wrap(faults, world.compressed, 'block', 'capsule freeze')
    _wrap(faults, world.kv.prefixes, 'row', 'capsule freeze')
    _wrap(faults, frozen_kv, 'fill', 'capsule fill')


def _disk(faults: Faults) -> None:
    write = storage.write

    def half(path: Path, *parts: bytes | memoryview) -> None:
        if faults.hits('disk write', RATES['disk write']):
            whole = memoryview(parts[0])
            write(path, whole[: len(whole) // 2])
            raise full('disk write')
        write(path, *parts)

    sync = storage.sync

    def risky(path: Path) -> None:
        if path.is_file():  # a changed name in a folder stays even if its sync fails
            faults.strike('disk sync', RATES['disk sync'], unreadable)
        sync(path)

    faults.replace(storage, 'write', half)
    faults.replace(storage, 'sync', risky)
    _wrap(faults, storage, 'open_regular', 'disk read', unreadable)


def _wrap(faults: Faults, owner: object, attribute: str, name: str, *error: object) -> None:
    call = getattr(owner, attribute)
    faults.replace(owner, attribute, faults.wrapped(name, call, RATES[name], *error))
