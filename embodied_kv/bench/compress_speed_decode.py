"""A decode step of whole and of compressed prefixes, by context, batch and who shares a frame.

Every stream has a frame of its own, as in a static batch of the paper, but for `shared`: there all
ask of one frame, as they do on a robot. Then a step over the whole row reads its KV once for all
of them (the kernel and its twin fold them together), copies by row likewise, and copies by stream
each their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from embodied_kv.bench import compress_speed_scene as scene
from embodied_kv.bench import physics
from embodied_kv.bench.scene import FullPolicy
from embodied_kv.engine.engine import Engine

MOST = 1.8e9  # bytes of the whole prefixes of a batch; points above are left out


def grid(
    policy: FullPolicy,
    contexts: Sequence[int],
    batches: Sequence[int],
    repeats: int,
    gbytes: float,
    device: str,
) -> Iterator[dict]:
    """A row for each context and ascending batch that fits `MOST`. gbytes: GB/s, measured."""
    for context in contexts:
        held = context * policy.config.kv_bytes_per_token
        fitting = [batch for batch in batches if batch * held <= MOST]
        if fitting:
            yield from _of_context(policy, context, fitting, repeats, gbytes, device)


def _of_context(
    policy: FullPolicy,
    context: int,
    batches: Sequence[int],
    repeats: int,
    gbytes: float,
    device: str,
) -> Iterator[dict]:
    c, most = policy.config, batches[-1]
    whole = dict(rows=most + 1, streams=most, reserved_rows=0)
    copies = whole | dict(rows=2, flat_rows=int(most * scene.ALPHA) + 1)
    engines = {
        'full': scene.make_engine(policy, context, **whole | scene.WAYS['full']),
        'compressed': scene.make_engine(policy, context, **copies | scene.WAYS['by stream']),
    }
    values = scene.noise(engines['full'])
    for batch in batches:
        for engine in engines.values():
            grow(engine, values, context, batch)
        took = scene.step_seconds(engines, repeats, device)
        tail = scene.SHORT + repeats // 2
        read = {
            way: physics.decode_step(c, kept + tail, batch)['bytes']
            for way, kept in (('full', context), ('compressed', scene.ALPHA * context))
        }
        yield dict(
            model=c.name,
            context=context,
            batch=batch,
            kv_mb=batch * context * c.kv_bytes_per_token / 1e6,
            full_ms=1e3 * took['full'],
            compressed_ms=1e3 * took['compressed'],
            speedup=took['full'] / took['compressed'],
            bound=read['full'] / read['compressed'],
            full_of_floor=read['full'] / gbytes / 1e9 / took['full'],
            compressed_of_floor=read['compressed'] / gbytes / 1e9 / took['compressed'],
        )


def grow(engine: Engine, values: Tensor, context: int, batch: int) -> None:
    """Streams until there are so many, each about a frame of its own, with one token said."""
    for number in range(len(engine.kv.streams()), batch):
        scene.ask(engine, scene.fill(engine, values, values, context, number), scene.SHORT)
        engine.decode()
    live, crowded = len(engine.kv.streams()), engine.kv.crowded
    assert live == batch and not crowded, f'{live} streams, {crowded} were not compressed'


def shared(
    policy: FullPolicy, context: int, batches: Sequence[int], repeats: int, device: str
) -> list[dict]:
    """Rows by number of streams that ask of one frame.

    mb: of the cache in use while the frame is the newest, its row being held for the action, and
    then by language alone.
    """
    rows = []
    for batch in batches:
        room = dict(rows=4, streams=batch, flat_rows=int(batch * scene.ALPHA) + 1)
        engines = {
            way: scene.make_engine(policy, context, **room | config)
            for way, config in scene.WAYS.items()
        }
        values = scene.noise(engines['full'])
        for engine in engines.values():
            handle = scene.fill(engine, values, values, context)
            for _ in range(batch):
                scene.ask(engine, handle, scene.SHORT)
                engine.decode()
        took = scene.step_seconds(engines, repeats, device)
        row = dict(model=policy.config.name, context=context, streams=batch)
        row |= {f'{way}_ms': 1e3 * seconds for way, seconds in took.items()}
        row |= {f'{way}_mb': _used(engine) for way, engine in engines.items()}
        for engine in engines.values():
            scene.fill(engine, values, values, 1, sequence=1)  # a newer frame
        row |= {f'{way}_alone_mb': _used(engine) for way, engine in engines.items()}
        rows.append({name.replace(' ', '_'): value for name, value in row.items()})
    return rows


def _used(engine: Engine) -> float:
    """MB of its cache in use."""
    return engine.kv.stats().bytes_used / 1e6
