"""Operations on language streams: ask, cancel, limit, keep less, and impossible requests.

Knows streams and limits. Does not know frames' images, capsules or memory.
"""

from __future__ import annotations

import math
from random import Random

from benchmarks.soak.outcome import DeclinedError, must_refuse
from benchmarks.soak.world import World

QUESTIONS = ('Subtask:', 'What is in the gripper?', 'Narrate:', 'x')
CONSUMERS = ('language', 'action')
TURNS = 2  # maximum number of language steps that are waited for


def ask(world: World, random: Random) -> None:
    """Open a stream over a frame that may be gone, of any length, temperature and seed."""
    if not world.handles:
        raise DeclinedError('there was no frame yet')
    handle, text = random.choice(list(world.handles)[-2:]), random.choice(QUESTIONS)
    how = dict(
        max_tokens=random.randint(1, 24),
        temperature=random.choice((0.0, 0.0, 1e-9, 0.7, 5.0)),
        seed=random.getrandbits(64),
    )
    try:
        stream = world.engine.open(handle, text, **how)
    except ValueError as error:
        if min(world.kv.streams_max, world.kv.language_rows_max) > 0:
            raise
        raise DeclinedError(str(error)) from error
    world.ledger.opened(stream.id)
    world.device.wake()


def impossible_question(world: World, random: Random) -> None:
    """Open a stream with invalid arguments."""
    if not world.handles:
        raise DeclinedError('there was no frame yet')
    odd = random.choice(
        [
            dict(text='  '),
            dict(text='why ' * 40),
            dict(max_tokens=0),
            dict(max_tokens=1000),
            dict(temperature=-1.0),
            dict(temperature=math.nan),
            dict(temperature=math.inf),
            dict(seed=-1),
            dict(seed=2**64),
        ]
    )
    how = dict(handle=world.handles[-1], text='what?') | odd
    must_refuse(lambda: world.engine.open(**how))


def cancel(world: World, random: Random) -> None:
    """Cancel a stream, which may have ended since it was listed."""
    streams = world.kv.streams.live()
    if not streams:
        raise DeclinedError('no stream is live')
    try:
        world.engine.cancel(random.choice(streams).id)
    except KeyError as error:
        raise DeclinedError(str(error)) from error


def cancel_nobody(world: World, random: Random) -> None:
    """Cancel a stream that never existed."""
    must_refuse(lambda: world.engine.cancel(-random.randint(0, 9)), KeyError)


def limit(world: World, random: Random) -> None:
    """Lower the limits of language, or restore them."""
    config = world.engine.config
    rows, streams = config.rows - config.reserved_rows, config.streams
    if random.random() < 0.4:
        rows, streams = random.randint(0, rows), random.randint(0, streams)
    world.kv.set_limits(rows=rows, streams=streams)


def impossible_limit(world: World, random: Random) -> None:
    """Set a limit that is negative or larger than the engine's."""
    odd = random.choice((dict(rows=-1), dict(rows=1000), dict(streams=-1), dict(streams=1000)))
    must_refuse(lambda: world.kv.set_limits(**odd))


def keep_less(world: World, random: Random) -> None:
    """Set the keep ratio of actions or of language."""
    share = random.choice((1.0, 10 ** random.uniform(-2, 0)))
    world.engine.compression.set_keep_ratio(random.choice(CONSUMERS), share)


def impossible_share(world: World, random: Random) -> None:
    """Set a keep ratio that is not in (0, 1]."""
    share = random.choice((0.0, -1.0, 1.5, math.nan))
    must_refuse(lambda: world.engine.compression.set_keep_ratio(random.choice(CONSUMERS), share))


def listen(world: World, random: Random) -> None:
    """Wait for up to TURNS language steps, as the rest of a period."""
    if (turns := random.randint(0, TURNS)) and world.kv.streams.live():
        world.ledger.listen(turns, patience=0.008)
