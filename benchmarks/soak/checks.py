"""The invariants: at any moment, when all is at rest, and after everything was dropped.

Knows the counts that the parts report, files and threads. Does not know the operations.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.soak.world import World
from embodied_kv.capsule.tiers import Tier

Law = tuple[str, object, object]  # (invariant, value found, value required)


def in_flight(world: World) -> None:
    """Check the invariants that hold at any moment."""
    with world.faults.paused():  # without injected disk errors
        _proven(world, 'each pool is whole, all are within the budget', world.kv.check_integrity)
    _judge(world, [('the device thread lives', world.device.is_alive(), True)])


def at_rest(world: World, threads: int, descriptors: int) -> None:
    """Bring the world to rest, and check the invariants that hold there.

    threads, descriptors: their numbers at the first rest.
    """
    left = world.rest()
    in_flight(world)
    _proven(world, 'groups of memory', world.planning.memory.groups.check_integrity)
    _judge(
        world,
        [
            ('futures that are not answered', left['unanswered'], 0),
            ('streams that never say that they ended', left['unended'], []),
            *_cache(world),
            *_capsules(world),
            *_memory(world),
            ('threads', threading.active_count(), threads),
            ('file descriptors', open_files(), descriptors),
        ],
    )


def given_up(world: World) -> None:
    """Drop all capsules and segments, then open both stores again; nothing must be left over."""
    registry, planning = world.registry, world.planning
    with world.faults.paused():
        for entry in registry.entries():
            registry.pin(entry.name, pinned=False)
            registry.drop(entry.name)
        for name in _names(world.folder / 'capsules'):
            registry.drop(name)
        for segment in planning.memory.store.list():
            planning.remove(segment.id)
        stats = planning.stats()
        laws = [(f'bytes in the {tier} tier', registry.used(tier), 0) for tier in Tier]
        laws += [
            ('files of capsules', _names(world.folder / 'capsules'), []),
            ('KV of memory', (stats.kept, stats.bytes, stats.cached_bytes), (0, 0, 0)),
            ('files of memory', _names(world.folder / 'memory'), []),
        ]
        planning.close()
        world.planning = world.open_planning()
        registry.close()
        again = world.open_registry()
        laws += [
            ('files that memory leaves behind', world.planning.memory.store.swept, 0),
            ('capsules after a restart', again.entries(), []),
        ]
        again.close()
        _judge(world, laws)


def refused_at_the_end(world: World) -> None:
    """Check that work is cancelled, not waited for, after the engine thread was stopped."""
    _judge(
        world,
        [
            ('the device thread ended', world.device.is_alive(), False),
            ('late work is cancelled', world.device.call(lambda: None).cancelled(), True),
        ],
    )


def open_files() -> int:
    """Return the number of file descriptors of this process."""
    return len(os.listdir('/proc/self/fd'))


def _cache(world: World) -> Iterator[Law]:
    stats, compressed = world.kv.stats(), world.compressed
    yield 'free prefix rows', stats.rows_free, stats.rows
    yield 'leases', stats.leases, 0
    yield 'live streams', stats.streams, 0
    used = sum(pool.bytes_used for pool in world.kv.pools)
    yield 'bytes of rows, decode KV and compressed copies', used, 0
    row, loaded = (pool.bytes_used for pool in world.planning.pools)
    held = used + row + loaded + world.registry.used(Tier.DEVICE)
    yield 'bytes in use of all pools', stats.bytes_used, held
    yield 'compressed copies', stats.compressed, 0
    yield 'free tokens of compressed rows', compressed.tokens_free, compressed.tokens
    yield 'texts of streams', len(world.engine.detokenizer), 0
    yield 'states of frames', len(world.engine.states) <= stats.rows, True


def _capsules(world: World) -> Iterator[Law]:
    entries = world.registry.entries()
    saved = sorted(entry.name for entry in entries if entry.saved)
    yield 'files of capsules', _names(world.folder / 'capsules'), saved
    yield 'unfinished files', _unfinished(world.folder), []
    for tier in Tier:
        here = (e.bytes for e in entries if (e.saved if tier is Tier.DISK else e.tier is tier))
        yield f'bytes in the {tier} tier', world.registry.used(tier), sum(here)


def _memory(world: World) -> Iterator[Law]:
    stats, store = world.planning.stats(), world.planning.memory.store
    yield 'files of memory', len(_names(world.folder / 'memory')), stats.kept
    yield 'segments of memory', stats.segments, len(store.list())
    yield 'bytes of layers at hand', stats.cached_bytes <= store.cache.capacity, True


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob('*.safetensors'))


def _unfinished(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob('.*'))


def _proven(world: World, law: str, check) -> None:
    try:
        check()
    except AssertionError as error:
        world.ledger.breaks(law, error)


def _judge(world: World, laws: list[Law]) -> None:
    for law, found, wanted in laws:
        if found != wanted:
            world.ledger.breaks(law, f'found {found}, should be {wanted}')
