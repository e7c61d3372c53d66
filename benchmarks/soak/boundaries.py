"""Which calls fail now and then: one at every boundary that a failure crosses in service.

Knows attributes of the parts, by name. Does not know what is done about a failure.
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
    """As a full disk refuses a transaction."""


def inject(faults: Faults, world: World, device: HostileDevice | None = None) -> None:
    """From now on, until the faults end; capsule copies, steps and listeners the world wraps.

    device: the one on which the world computes, where that is a hostile one.
    """
    if device is not None:
        _wrap(faults, device, 'tick', 'operation')
    _computation(faults, world)
    _disk(faults)
    records = world.planning.memory.store._records  # of which each change is one transaction
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
        if path.is_file():  # names in a folder, once changed, stand whether they are synced or not
            faults.strike('disk sync', RATES['disk sync'], unreadable)
        sync(path)

    faults.replace(storage, 'write', half)
    faults.replace(storage, 'sync', risky)
    _wrap(faults, storage, 'open_regular', 'disk read', unreadable)


def _wrap(faults: Faults, owner: object, attribute: str, name: str, *error: object) -> None:
    call = getattr(owner, attribute)
    faults.replace(owner, attribute, faults.wrapped(name, call, RATES[name], *error))
