"""Replays the newest frame of a capsule: the chunk of frozen rows, compared with the live one."""

from __future__ import annotations

import math
from contextlib import ExitStack

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.engine.compression import ACTION
from embodied_kv.errors import ErrorCode
from embodied_kv.session.engine_part import EnginePart, _guide
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.types import ActionChunk


def replay(session: RobotSession, name: str) -> ActionChunk:
    """Return the chunk of the newest frame of a capsule; it must not be executed."""
    part = session.engine_part
    frozen = session._frozen(session.registry.get(name))[part.name]
    return session._on_engine(lambda: replay_part(part, frozen))[0]


def replay_part(part: EnginePart, frozen: FrozenPart) -> ActionChunk:
    """Return the chunk of the frozen newest frame; on the engine thread.

    Raises CapsuleError if there was no frame, and for a damaged capsule.
    """
    part._check_whole(frozen)
    number = frozen.facts['current']
    if number is None:
        raise CapsuleError(
            'the capsule has no frame: it was taken before the first one', ErrorCode.NOT_FOUND
        )
    with ExitStack() as held:
        lease = held.enter_context(part._adopt(frozen, number))
        if (copy := frozen.facts['action']) is not None:
            action = part._adopt_copy(frozen, copy, lease.handle)
            held.enter_context(action.share())
            part._kv.keep_copy([ACTION], action)
        guides = [_guide(frozen.tensors.get(f'row/{number}/guide'))]
        (chunk,) = part._engine.denoise([lease], [math.inf], guides=guides)
    if isinstance(chunk, FloatingPointError):
        raise CapsuleError(f'the capsule cannot be replayed: {chunk}')
    return chunk
