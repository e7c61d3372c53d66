"""Decode steps over whole and compressed prefixes, by context, batch and sharing of a frame.

Every stream has a frame of its own, as in a static batch of the paper. In `shared`, all streams
ask about one frame, as they do on a robot. There a step over the whole row reads its KV once for
all of them (the kernel and its torch counterpart fold them together), and so does a step over
copies by row. Copies by text are read by each stream: from 1 / keep ratio streams on these are
more bytes than the row, but still a tenth of the operations of attention.

`of_floor` is the minimum time of the machine over the measured time. `by_floor` is the speedup if
a step took that minimum, `by_bytes` if it took as long as its bytes. The speedup exceeds them if a
way reads KV slower than weights, byte for byte.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.common import clock, physics
from benchmarks.common.clock import Ceilings
from benchmarks.common.scene import FullPolicy
from benchmarks.compress.speed import scene
from benchmarks.compress.speed.plan import Steps
from benchmarks.compress.speed.scene import PASSING, RESERVED
from embodied_kv.config import ModelConfig
from embodied_kv.engine.engine import Engine

MOST = 1.8e9  # bytes of the whole prefixes of a batch; points above are left out


def grid(policy: FullPolicy, steps: Steps, ceilings: Ceilings, device: str) -> Iterator[dict]:
    """Yield a row for each context and batch, ascending, that fits `MOST`."""
    for context in steps.contexts:
        held = context * policy.config.kv_bytes_per_token
        batches = [batch for batch in steps.batches if batch * held <= MOST]
        if batches:
            fitting = Steps((context,), batches, steps.repeats)
            yield from _of_context(policy, fitting, ceilings, device)


def _of_context(
    policy: FullPolicy, steps: Steps, ceilings: Ceilings, device: str
) -> Iterator[dict]:
    c, most, (context,) = policy.config, steps.batches[-1], steps.contexts
    whole = dict(rows=most + RESERVED, streams=most)
    copies = whole | dict(
        rows=PASSING + RESERVED, compressed_rows=int(most * scene.KEEP_RATIO) + 1
    )
    engines = {
        'full': scene.make_engine(policy, context, **whole | scene.WAYS['full']),
        'compressed': scene.make_engine(policy, context, **copies | scene.WAYS['by text']),
    }
    kept = dict(full=context, compressed=scene.KEEP_RATIO * context)
    values = scene.noise(engines['full'])
    for batch in steps.batches:
        for engine in engines.values():
            scene.grow(engine, values, context, batch)
        took = step_seconds(engines, steps.repeats, device)
        own_tokens = decode_tokens(engines['full'])
        read = {way: reads(c, batch, batch, n, own_tokens) for way, n in kept.items()}
        row = dict(
            model=c.name,
            context=context,
            batch=batch,
            kv_mb=batch * context * c.kv_bytes_per_token / 1e6,
        )
        row |= {f'{way}_ms': 1e3 * seconds for way, seconds in took.items()}
        row |= dict(
            speedup=took['full'] / took['compressed'],
            by_bytes=read['full']['bytes'] / read['compressed']['bytes'],
        )
        yield row | {f'{way}_of_floor': ceilings.floor(**read[way]) / took[way] for way in engines}


def shared(
    policy: FullPolicy,
    context: int,
    batches: Sequence[int],
    repeats: int,
    ceilings: Ceilings,
    device: str,
) -> Iterator[dict]:
    """Yield rows by number of streams that ask about one frame, and way.

    mb: of the cache in use while the frame is the newest and the action holds its row.
    language_mb: of the cache in use by language alone, after a newer frame.
    """
    c = policy.config
    for batch in batches:
        room = dict(rows=4, streams=batch, compressed_rows=int(batch * scene.KEEP_RATIO) + 1)
        engines = {
            way: scene.make_engine(policy, context, **room | config)
            for way, config in scene.WAYS.items()
        }
        values = scene.noise(engines['full'])
        for engine in engines.values():
            handle = scene.fill(engine, values, values, context)
            for _ in range(batch):
                scene.ask(engine, handle, scene.SHORT, scene.ANSWER)
                engine.decode()
        took, own_tokens = step_seconds(engines, repeats, device), decode_tokens(engines['full'])
        tenth = scene.KEEP_RATIO * context
        read = {
            'full': reads(c, batch, 1, context, own_tokens),
            'by row': reads(c, batch, 1, tenth, own_tokens),
            'by text': reads(c, batch, batch, tenth, own_tokens),
        }
        least = {way: ceilings.floor(**work) for way, work in read.items()}
        newest = {way: _used(engine) for way, engine in engines.items()}
        for way, engine in engines.items():
            scene.fill(engine, values, values, 1, sequence=1)  # a newer frame
            yield dict(
                model=c.name,
                context=context,
                streams=batch,
                way=way,
                ms=1e3 * took[way],
                speedup=took['full'] / took[way],
                by_bytes=read['full']['bytes'] / read[way]['bytes'],
                by_floor=least['full'] / least[way],
                of_floor=least[way] / took[way],
                mb=newest[way],
                language_mb=_used(engine),
            )


def step_seconds(engines: Mapping[str, Engine], repeats: int, device: str) -> dict[str, float]:
    """Return the median seconds of a step of all streams of each engine, taken in turn."""
    steps = {way: engine.decode for way, engine in engines.items()}
    taken = clock.in_turn(steps, repeats, device)
    return {way: statistics.median(own) for way, own in taken.items()}


def decode_tokens(engine: Engine) -> float:
    """Return the present mean number of tokens in the decode KV of a stream."""
    return statistics.mean(stream.extent for stream in engine.kv.streams.live())


def reads(
    c: ModelConfig, batch: int, prefixes: int, tokens: float, own_tokens: float
) -> dict[str, float]:
    """Return FLOP and bytes of a step of `batch` streams over prefixes of `tokens` tokens."""
    need = physics.decode_step(c, tokens + own_tokens, batch)
    folded = (batch - prefixes) * tokens * c.kv_bytes_per_token
    return need | dict(bytes=need['bytes'] - folded)


def _used(engine: Engine) -> float:
    """Return the MB of the engine's cache in use."""
    return engine.kv.stats().bytes_used / 1e6
