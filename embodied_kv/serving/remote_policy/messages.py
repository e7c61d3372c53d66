"""The messages of a robot to a policy server: observations as requests, replies as chunks.

A request has the keys of the contract's section `openpi`, as openpi's clients send them. A reply
that the robot cannot execute is refused here with the reason; motion limits are enforced by the
control loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from embodied_kv.robots.contract import Contract
from embodied_kv.serving.websocket.calls import ACTIONS, ROUNDS
from embodied_kv.serving.websocket.observation_parser import LARGEST, PROMPT
from embodied_kv.text import shown
from embodied_kv.types import ActionChunk


class UnusableReplyError(ValueError):
    """A reply that is not a chunk for this robot; the message states the reason."""


class MissedDeadlineError(TimeoutError):
    """The server computed no chunk, because none could be ready by the deadline."""


class RefusedRequestError(ValueError):
    """The server refused the request; the message is its reason."""


@dataclass(frozen=True)
class RequestWriter:
    """Writes requests; `image_size`: maximum pixels of an image's longer side, 0 for no limit."""

    contract: Contract
    image_size: int = 0

    def write(
        self, images: Mapping[str, NDArray[np.uint8]], state: NDArray[np.float64], prompt: str
    ) -> dict[str, object]:
        """Return a request for a chunk. Raises ValueError if a required view is missing.

        Args:
            images: By view, uint8 [height, width, 3].
            state: [state_dim], in the policy's units.
            prompt: The instruction.
        """
        robot, client = self.contract.robot_type, self.contract.clients
        request: dict[str, object] = {PROMPT: prompt}
        for view, key in client.views.items():
            if view in images:
                self._put(request, key, self._picture(images[view]))
            elif view not in client.optional:
                raise ValueError(
                    f'view {view} must be present, because a client of {robot} has to send {key}; '
                    f'if the server does not need it, add openpi: {{optional: [{view}]}} to the '
                    'contract'
                )
        begin = 0
        for key, count in client.state.items():
            numbers = np.asarray(state[begin : begin + count], np.float64)
            self._put(request, key, numbers)
            begin += count
        return request

    def _put(self, request: dict, key: str, value: object) -> None:
        head, _, rest = key.partition('/')
        if rest and head in self.contract.clients.nested:
            request.setdefault(head, {})[rest] = value
        else:
            request[key] = value

    def _picture(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        longer = max(pixels.shape[:2])
        if 0 < self.image_size < longer:
            ratio = longer / self.image_size  # rounds down, as openpi's resize_with_pad
            height, width = (max(1, int(side / ratio)) for side in pixels.shape[:2])
            small = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(small)
        if self.contract.clients.channels_first:
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels)


def chunk(
    reply: Mapping[str, Any],
    action_dim: int,
    dt: float,
    stamp: int,
    sequence: int,
    judged: bool = False,
) -> ActionChunk:
    """Return the chunk of a reply, in the policy's units, without a deadline.

    Args:
        reply: The reply of the server.
        action_dim: Length of an action of this robot.
        dt: Seconds between two actions.
        stamp: Stamp of the observation, ns.
        sequence: Sequence number of the observation.
        judged: Whether to read `execution_horizon` and `confidence`, if present.

    Raises:
        UnusableReplyError, MissedDeadlineError, RefusedRequestError: There is no chunk.
    """
    if 'refused' in reply:
        raise RefusedRequestError(shown(reply['refused'], 300))
    if 'missed' in reply:
        raise MissedDeadlineError(shown(reply['missed'], 200))
    actions = reply.get('actions')
    if not isinstance(actions, np.ndarray) or actions.dtype.kind not in 'fiu':
        kind = 'nothing' if actions is None else f'a {type(actions).__name__}'
        raise UnusableReplyError(f'actions must be an array of numbers (got {kind})')
    if actions.ndim != 2 or actions.shape[1] != action_dim or not 1 <= len(actions) <= ACTIONS:
        raise UnusableReplyError(
            f'actions must be [1 to {ACTIONS}, {action_dim}] for this robot (got '
            f'{list(actions.shape)})'
        )
    values = actions.astype(np.float64)
    if not np.isfinite(values).all():
        raise UnusableReplyError('actions must be finite (got NaN or infinity)')
    if (np.abs(values) > LARGEST).any():
        raise UnusableReplyError(
            f'actions must be at most {LARGEST:g} (got {np.abs(values).max():g})'
        )
    timing = reply.get('policy_timing')
    timing = timing if isinstance(timing, Mapping) else {}
    return ActionChunk(
        values=values,
        dt=dt,
        stamp=stamp,
        deadline=math.inf,
        sequence=sequence,
        steps=int(number(timing, 'steps')),
        prefill_ms=number(timing, 'prefill_ms'),
        denoise_ms=number(timing, 'denoise_ms') or number(timing, 'infer_ms'),
        updates=np.full((1, len(values)), np.nan, np.float32),
        **(_judgement(reply, len(values)) if judged else {}),
    )


def round_of(reply: Mapping[str, Any]) -> int | None:
    """Return the round of a reply, by which its execution is reported; None without one."""
    value: Any = reply.get('round')
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value < ROUNDS else None


def _judgement(reply: Mapping[str, Any], actions: int) -> dict[str, Any]:
    horizon, confidence = reply.get('execution_horizon'), reply.get('confidence')
    if horizon is None:
        return {}
    if isinstance(horizon, bool) or not isinstance(horizon, int) or not 1 <= horizon <= ACTIONS:
        raise UnusableReplyError(
            f'execution_horizon must be a whole number from 1 to {ACTIONS} (got {shown(horizon)})'
        )
    if (
        not isinstance(confidence, np.ndarray)
        or confidence.dtype.kind != 'f'
        or confidence.shape != (actions,)
        or not ((confidence >= 0) & (confidence <= 1)).all()
    ):
        raise UnusableReplyError(f'confidence must be {actions} numbers from 0 to 1')
    return {
        'execution_horizon': min(horizon, actions),
        'confidence': confidence.astype(np.float32),
    }


def number(timing: Mapping[str, Any], name: str) -> float:
    """Return a reported number from 0 to 1e6; 0 if it is absent or invalid."""
    value = timing.get(name, 0.0)
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e6 else 0.0
