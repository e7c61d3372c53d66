"""The values that flow from camera to action and words. Plain, frozen, numpy only.

Times: a `stamp` is nanoseconds on the ROS clock (it names a moment of the world, and goes into
messages); a `deadline` is seconds on `time.monotonic()` (it is what the engine races against).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Observation:
    """What the robot saw and felt at one moment.

    images: one uint8 [height, width, 3] RGB array per view of the model, or what `Policy.fitted`
    made of it; None for a view that is missing. state: real numbers [state_dim], in the policy's
    own units and order, each from -1e6 to 1e6. instruction, robot: text that UTF-8 can encode.
    stamp, sequence: integers of 64 bits. The engine refuses anything else as BadObservation.
    guide: of a robot whose chunks are made elsewhere, what it does meanwhile.
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
    """What the arm is going to do while a chunk is made, in the time of the chunk's observation.

    actions: float [chunk, action_dim], absolute, in the policy's units; the i-th is due i * dt
    after the observation, NaN from where nothing is planned. delay: d, how many of them will have
    passed when the chunk takes over. weights: float [chunk], 0 to 1, how much `guided` holds each
    action of the new chunk to these; `trained` is given the first d.
    """

    actions: np.ndarray
    delay: int
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class ActionChunk:
    """A finished chunk of actions; never a half-denoised one.

    values: float [chunk, action_dim], absolute; action i is due at stamp + i * dt. The engine
    speaks in the policy's units, whatever executes them in SI.
    steps: Euler steps that made it. updates: float32 [steps, chunk], how far each step moved
    each action, in normalised units; None where nobody looked. execution_horizon: H, the actions
    from the first on that may be executed; None: all. confidence: float32 [chunk], 0 to 1, how
    sure denoising is of each action; None where nobody asked. Both are judged from the updates, by
    control.execution_horizon.
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
    """What a language stream said since its last delta.

    tokens: generated so far in all. reason: '' while it lives, else 'eos', 'length', 'cancelled',
    'evicted' (its row was needed), 'replaced' (a capsule's stream took its place) or 'error'.
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
