"""Parameters of a robot whose engine is a policy server: where it is, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.engine_config import EngineConfig
from embodied_kv.nodes.common.parameters import param
from embodied_kv.serving.remote_policy.connection import Address


@dataclass(frozen=True)
class RemoteParams:
    """`server.NAME` of each node of such a robot."""

    address: str = param(
        'ws://127.0.0.1:8000', "A policy server, ours or any that speaks openpi's protocol"
    )
    api_key: str = param('', "File with the key that it asks for; '' for none")
    reply_seconds: float = param(
        5.0,
        'A server that has not answered for so long, s, is given up: the next connection is '
        'another try',
        range=(0.1, 600.0),
    )
    answer_seconds: float = param(
        30.0,
        'The same of a question: words take longer than a chunk, and wait for those of others',
        range=(0.1, 600.0),
    )
    image_size: int = param(
        224,
        "Pictures are sent with so many pixels of their longer side, at most, as openpi's clients "
        'do; 0: as they are',
        range=(0, 4096),
    )
    request_ahead: int = param(
        -1,
        'Actions before the end of an execution at which the next chunk is requested, so that '
        'many robots share a server; with the age of an image it must be below the least '
        'execution horizon. -1: a chunk is requested `rate` times a second',
        range=(-1, 1000),
    )
    deadlines: bool = param(
        True,
        'Tell a server that keeps deadlines how long its chunk may take: Euler steps fit in. Not '
        'under simulated time',
    )
    rtc: bool = param(
        False,
        'Tell the server what the arm does meanwhile: a chunk goes on from that (real-time '
        'chunking) as its engine.rtc says. A server that does not take it is refused',
    )
    rtc_horizon: int = param(
        0,
        'With rtc: actions of a chunk, from its first on, until which it must take over. 0: half '
        'of them',
        range=(0, 1000),
    )

    @property
    def settings(self) -> EngineConfig:
        """As an engine of the robot's own would be told; the server decides which mode."""
        return EngineConfig(rtc='guided' if self.rtc else 'off', rtc_horizon=self.rtc_horizon)

    @property
    def where(self) -> Address:
        """Raises ValueError, OSError."""
        try:
            key = Address.key_of(self.api_key)
            return Address(self.address, key, self.reply_seconds)
        except ValueError as error:
            raise ValueError(f'parameter server.address, server.api_key: {error}') from error
