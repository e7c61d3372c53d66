"""A server's reply as a chunk: what a robot could not execute is refused here, with the reason.

Knows openpi's reply and ours. Does not know sockets or arms: limits are the control loop's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_kv.serving.websocket.calls import ACTIONS, ROUNDS
from embodied_kv.serving.websocket.dialect import LARGEST
from embodied_kv.text import shown
from embodied_kv.types import ActionChunk


class Unusable(ValueError):
    """A reply that is no chunk of this robot; the message says why."""


class Missed(TimeoutError):
    """The server made no chunk, as none could be there by the deadline."""


class Declined(ValueError):
    """The server refused the request; the message is its reason."""


def chunk(
    reply: Mapping[str, Any],
    action_dim: int,
    dt: float,
    stamp: int,
    sequence: int,
    judged: bool = False,
) -> ActionChunk:
    """Return the chunk in the policy's units, without a deadline.

    stamp: of the observation that it answers. judged: whether its `execution_horizon` and
    `confidence` are read, where it has them. Raises Unusable, Missed, Declined.
    """
    if 'refused' in reply:
        raise Declined(shown(reply['refused'], 300))
    if 'missed' in reply:
        raise Missed(shown(reply['missed'], 200))
    actions = reply.get('actions')
    if not isinstance(actions, np.ndarray) or actions.dtype.kind not in 'fiu':
        kind = 'missing' if actions is None else f'a {type(actions).__name__}'
        raise Unusable(f'actions is {kind}: a server sends an array of numbers')
    if actions.ndim != 2 or actions.shape[1] != action_dim or not 1 <= len(actions) <= ACTIONS:
        raise Unusable(
            f'actions is {list(actions.shape)}: this robot takes [1 to {ACTIONS}, {action_dim}]'
        )
    values = actions.astype(np.float64)
    if not np.isfinite(values).all():
        raise Unusable('actions has NaN or infinity')
    if (np.abs(values) > LARGEST).any():
        raise Unusable(f'actions goes up to {np.abs(values).max():g}: no robot goes there')
    timing = reply.get('policy_timing')
    timing = timing if isinstance(timing, Mapping) else {}
    whole = number(timing, 'infer_ms')
    return ActionChunk(
        values=values,
        dt=dt,
        stamp=stamp,
        deadline=math.inf,
        sequence=sequence,
        steps=int(number(timing, 'steps')),
        prefill_ms=number(timing, 'prefill_ms'),
        denoise_ms=number(timing, 'denoise_ms') or whole,
        updates=np.full((1, len(values)), np.nan, np.float32),
        **(_judgement(reply, len(values)) if judged else {}),
    )


def round_of(reply: Mapping[str, Any]) -> int | None:
    """Return the number of a reply's round, by which its execution is reported; None without."""
    value = reply.get('round')
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value < ROUNDS else None


def _judgement(reply: Mapping[str, Any], actions: int) -> dict[str, Any]:
    """Raises Unusable."""
    horizon, confidence = reply.get('execution_horizon'), reply.get('confidence')
    if horizon is None:
        return {}
    if isinstance(horizon, bool) or not isinstance(horizon, int) or not 1 <= horizon <= ACTIONS:
        raise Unusable(
            f'execution_horizon must be a whole number from 1 to {ACTIONS} (got {shown(horizon)})'
        )
    if (
        not isinstance(confidence, np.ndarray)
        or confidence.dtype.kind != 'f'
        or confidence.shape != (actions,)
        or not ((confidence >= 0) & (confidence <= 1)).all()
    ):
        raise Unusable(f'confidence must be {actions} numbers from 0 to 1, one for each action')
    return {
        'execution_horizon': min(horizon, actions),
        'confidence': confidence.astype(np.float32),
    }


def number(timing: Mapping[str, Any], name: str) -> float:
    """A number from 0 on that a server may or may not tell; 0 where it tells none."""
    value = timing.get(name, 0.0)
    told = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return float(value) if told and 0 <= value < 1e6 else 0.0
