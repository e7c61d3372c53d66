"""Cost of a later choice: a stream keeps its whole prefix for its first tokens.

Engines that choose after 0 to 4 tokens (`engine.compression_after_tokens`) answer the same
questions about the same frames with as many tokens. Until the choice a step reads the whole prefix
and scores it by each new token, and the prefix's row is held: bytes of a whole row a stream, of
which a copy takes a tenth. The work of selection and copy does not depend on when it is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from torch import Tensor

from benchmarks.common import clock
from benchmarks.common.scene import FullPolicy
from benchmarks.compress.speed import scene
from benchmarks.compress.speed.scene import PASSING, RESERVED
from embodied_kv.engine.engine import Engine

AFTER = (0, 1, 2, 3, 4)  # tokens
SAID = max(AFTER) + 2  # tokens of every answer: the last of them always from the copy
QUESTION = 24  # tokens


def measure(
    policy: FullPolicy, context: int, batches: Sequence[int], repeats: int, device: str
) -> Iterator[dict]:
    """Yield rows by number of streams, each about its own frame, and by tokens before the choice.

    ms: of all calls until each stream has `SAID` tokens. later_pct: by how much that exceeds the
    time with 0. held_mb: maximum of the cache in use by language until then. kept_mb: in use at
    the end.
    """
    for batch in batches:
        engines = {after: _engine(policy, context, batch, after) for after in AFTER}
        values = scene.noise(engines[0])
        rounds = [
            {
                after: _answers(engines[after], values, context, batch, device)
                for after in clock.order(AFTER, number)
            }
            for number in range(repeats + 1)
        ][1:]
        for after in AFTER:
            taken = [own[after] for own in rounds]
            yield dict(
                model=policy.config.name,
                context=context,
                streams=batch,
                after=after,
                ms=1e3 * median(one['seconds'] for one in taken),
                later_pct=100
                * median(own[after]['seconds'] / own[0]['seconds'] - 1 for own in rounds),
                held_mb=taken[0]['held_mb'],
                kept_mb=taken[0]['kept_mb'],
            )


def _engine(policy: FullPolicy, context: int, batch: int, after: int) -> Engine:
    room = dict(
        rows=batch + PASSING + RESERVED,
        streams=batch,
        compressed_rows=int(batch * scene.KEEP_RATIO) + 1,
    )
    return scene.make_engine(
        policy, context, **room | scene.WAYS['by text'] | dict(compression_after_tokens=after)
    )


def _answers(
    engine: Engine, values: Tensor, context: int, batch: int, device: str
) -> Mapping[str, float]:
    """Return seconds and MB of the beginning of `batch` answers, which are then cancelled."""
    streams = []
    for number in range(batch):
        handle = scene.fill(engine, values, values, context, number)
        streams.append(scene.ask(engine, handle, QUESTION, scene.ANSWER))
    scene.fill(engine, values, values, 1, sequence=batch)  # newer: only language uses the others
    seconds = held = 0.0
    while min(len(stream.tokens) for stream in streams) < SAID:
        seconds += clock.seconds(engine.decode, device)
        kept = engine.kv.stats().bytes_used / 1e6
        held = max(held, kept)
    assert all(stream.lease.is_copy for stream in streams), 'a prefix was not compressed'
    for stream in streams:
        engine.cancel(stream.id)
    engine.deltas()
    return dict(seconds=seconds, held_mb=held, kept_mb=kept)
