"""A client's request as an engine takes it: what it sees, its deadline, and what its arm does.

Knows the engine's model and its real-time chunking. Does not know sockets or sessions.
"""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control import rtc
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.guidance import leftover
from embodied_kv.serving.in_time import TimedObservation
from embodied_kv.serving.websocket.calls import LOOK, Call
from embodied_kv.serving.websocket.dialect import PROMPT, Refused, Seen
from embodied_kv.types import Guide


def observation(
    engine: Engine, seen: Seen, call: Call, robot: str, number: int, received: float, prompt: str
) -> TimedObservation:
    """Of round `number` of a robot, received at that moment, s, steady clock.

    prompt: where the client sent none. Raises Refused, also without a prompt, but for `look`.
    """
    instruction = seen.prompt or prompt
    if not instruction and call.endpoint != LOOK:
        raise Refused(
            f'{PROMPT} is missing or empty: send what to do, or start the server with that for '
            'whoever sends none: --prompt "…", of the node -p prompt:="…"'
        )
    c = engine.config
    if call.steps and not c.min_euler_steps <= call.steps <= c.euler_steps:
        raise Refused(
            f'euler_steps is {call.steps}: this server makes chunks in {c.min_euler_steps} to '
            f'{c.euler_steps}'
        )
    if call.deadline < math.inf and not c.time_budget:
        raise Refused('deadline_ms: no time is kept here; start with engine.time_budget: true')
    return TimedObservation(
        images=tuple(seen.images[view] for view in engine.policy.config.views),
        state=seen.state,
        instruction=instruction,
        stamp=time.time_ns(),
        deadline=received + call.deadline,
        sequence=number,
        robot=robot,
        guide=_guide(engine, call, seen.state),
        steps=call.steps,
        horizon=call.horizon,
        execution=call.execution,
    )


def _guide(engine: Engine, call: Call, state: NDArray[np.float64]) -> Guide | None:
    """What the chunk goes on from; None where the client tells nothing."""
    if call.leftover is None:
        if call.delay:
            raise Refused(
                'leftover_delay is there without leftover: send the actions that are planned'
            )
        return None
    config, model = engine.config, engine.policy.config
    if config.rtc == 'off':
        raise Refused('leftover: real-time chunking is off here; start with engine.rtc: guided')
    if call.leftover.shape[1] != model.action_dim:
        raise Refused(
            f'leftover is {list(call.leftover.shape)}: an action has {model.action_dim} numbers'
        )
    known = min(len(call.leftover), model.chunk_size)
    actions = np.full((model.chunk_size, model.action_dim), np.nan)
    actions[:known] = call.leftover[:known]
    if call.delay > min(known, model.chunk_size - 1):
        raise Refused(
            f'leftover_delay is {call.delay}: of these {len(call.leftover)} actions, and of the '
            f'{model.chunk_size} of a chunk, fewer can have passed'
        )
    end = min(config.horizon(model.chunk_size), known)
    weights = rtc.weights(call.delay, end, model.chunk_size, config.rtc_schedule)
    guide = Guide(actions, call.delay, weights)
    try:
        leftover(guide, engine.policy, state)
    except ValueError as error:
        raise Refused(f'leftover: {error}') from error
    return guide
