"""What a policy server can do beyond openpi's protocol, as it says itself when a client connects.

Knows one key of the metadata, which openpi's clients pass over. Does not know sockets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from embodied_kv.config import ModelConfig
from embodied_kv.engine_config import EngineConfig

KEY = 'embodied_kv'  # of the metadata


@dataclass(frozen=True)
class Extensions:
    """Of one server; each also repeats the `request_id` of a request in its reply.

    chunk_size, action_dim, dt: of its policy's chunks. leftover: whether a request may tell what
    the robot does meanwhile. deadlines: whether it may name one. questions: whether `ask` is
    answered. min_euler_steps: the fewest of a chunk.
    """

    chunk_size: int
    action_dim: int
    dt: float
    leftover: bool
    deadlines: bool
    questions: bool
    min_euler_steps: int

    @classmethod
    def of(cls, model: ModelConfig, config: EngineConfig, questions: bool) -> Extensions:
        """Of a server on such an engine. questions: whether the contract says that it may ask."""
        return cls(
            chunk_size=model.chunk_size,
            action_dim=model.action_dim,
            dt=model.action_dt,
            leftover=config.rtc != 'off',
            deadlines=config.time_budget,
            questions=questions,
            min_euler_steps=config.min_euler_steps,
        )

    @property
    def metadata(self) -> dict[str, object]:
        """As a client is told."""
        return {KEY: asdict(self)}

    @classmethod
    def read(cls, metadata: object) -> Extensions | None:
        """Of the server that says this; None of one that has none. Raises ValueError."""
        if not isinstance(metadata, Mapping):
            raise ValueError(f'its metadata is a {type(metadata).__name__}: openpi sends a map')
        said = metadata.get(KEY)
        if said is None:
            return None
        kinds = {
            f.name: {'int': int, 'float': (int, float), 'bool': bool}[f.type] for f in fields(cls)
        }
        if not isinstance(said, Mapping):
            raise ValueError(f'what it says of {KEY} is no map')
        found = {name: said.get(name) for name in kinds}
        for name, kind in kinds.items():
            if not isinstance(found[name], kind) or (kind is int and not 0 < found[name] < 2**16):
                raise ValueError(f'what it says of {KEY}.{name} is no such value')
        if not 0 < found['dt'] < math.inf:
            raise ValueError(f'what it says of {KEY}.dt is no time')
        return cls(**found)
