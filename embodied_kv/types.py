"""The values that flow from camera to action and text.

A `stamp` is a time (ns) on the ROS clock, as in messages. A `deadline` is a time (s) on
`time.monotonic()`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Observation:
    """The images, state and instruction of a robot at one moment.

    images: one uint8 [height, width, 3] RGB array per view of the model, or the result of
    `Policy.fitted`; None for a missing view. state: real numbers [state_dim], in the policy's
    units and order, each from -1e6 to 1e6. instruction, robot: text that UTF-8 can encode. stamp,
    sequence: integers of 64 bits. The engine refuses other values with BadObservationError. guide:
    the planned actions of a robot whose chunks are computed on a server.
    """

    images: tuple[np.ndarray | None, ...]
    state: np.ndarray
    instruction: str
    stamp: int
    deadline: float
    sequence: int
    robot: str = ''
    guide: Guide | None = None


@dataclass(frozen=True, eq=False)
class Guide:
    """The actions that the arm executes while a chunk is computed (real-time chunking).

    actions: float [chunk, action_dim], absolute, in the policy's units; the i-th is due i * dt
    after the observation, NaN after the last planned one. delay: d, how many of them will have
    passed when the chunk takes over. weights: float [chunk], 0 to 1, by which `guided` draws each
    action of the new chunk to these; `trained` uses the first d.
    """

    actions: np.ndarray
    delay: int
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class ActionChunk:
    """A completely denoised chunk of actions.

    values: float [chunk, action_dim], absolute, in the policy's units in the engine, in SI where
    they are executed; action i is due at stamp + i * dt. steps: Euler steps. updates: float32
    [steps, chunk], the size of each step for each action, in normalised units; None: not computed.
    execution_horizon: H, the actions from the first on that may be executed; None: all.
    confidence: float32 [chunk], 0 to 1, of each action; None: not computed. The last two result
    from the updates, by `control.execution_horizon`.
    """

    values: np.ndarray
    dt: float
    stamp: int
    deadline: float
    sequence: int
    steps: int
    prefill_ms: float
    denoise_ms: float
    updates: np.ndarray | None = None
    execution_horizon: int | None = None
    confidence: np.ndarray | None = None


@dataclass(frozen=True)
class TextDelta:
    """The text of a language stream since its last delta.

    tokens: number of all generated tokens so far. reason: '' before the end, then 'eos', 'length',
    'cancelled', 'evicted' (its row was needed), 'replaced' (by a capsule's stream) or 'error'.
    """

    stream: int
    sequence: int
    stamp: int
    query: str
    text: str
    tokens: int
    reason: str = ''

    @property
    def finished(self) -> bool:
        return bool(self.reason)
