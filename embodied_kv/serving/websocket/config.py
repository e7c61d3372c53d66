"""The settings of the policy server and of its engine: ROS parameters, and options of the command.

Knows names, defaults and ranges. Does not know ROS, nor what a command line looks like.
"""

from __future__ import annotations

import ipaddress
from dataclasses import Field, dataclass, field, fields
from pathlib import Path

from embodied_kv.engine_config import EngineConfig

MIB = 2**20


def _param(default: bool | int | float | str, help: str, **more: object) -> Field:
    return field(default=default, metadata={'help': help, 'when': 'configure', **more})


def _of_engine(name: str, default: int | float) -> Field:
    """A parameter of any engine, by another default."""
    (known,) = (f for f in fields(EngineConfig) if f.name == name)
    return field(default=default, metadata=known.metadata)


@dataclass(frozen=True)
class ServedEngineConfig(EngineConfig):
    """An engine that many clients share, as long as nothing else is said: it batches."""

    robots: int = _of_engine('robots', 8)
    rows: int = _of_engine('rows', 80)  # a batch, the newest of each client, one of each stream
    reserved_rows: int = _of_engine('reserved_rows', 40)
    streams: int = _of_engine('streams', 16)
    compressed_rows: int = _of_engine('compressed_rows', 0)
    margin_ms: float = _of_engine('margin_ms', 1.0)


@dataclass(frozen=True)
class ServerConfig:
    """Who may connect, and how much each may ask for. Raises ValueError with what to change."""

    host: str = _param('127.0.0.1', 'Address that is listened on; any but loopback needs api_keys')
    port: int = _param(8000, 'Port; 0 takes a free one', range=(0, 65535))
    api_keys: str = _param(
        '', "File with the keys that open the door, one a line; '' for none: all may come in"
    )
    connections: int = _param(64, 'Clients at the same time', range=(1, 4096))
    connections_per_key: int = _param(
        16, 'Of these, clients that come with the same key', range=(1, 4096)
    )
    message_mib: int = _param(32, 'Longest message, MiB', range=(1, 1024))
    request_rate: float = _param(
        100.0, 'Requests per second of a client; more of them wait', range=(0.1, 10_000.0)
    )
    request_seconds: float = _param(
        30.0, 'A request without an answer for so long, s, has failed', range=(0.1, 3600.0)
    )
    silence_seconds: float = _param(
        60.0,
        'A client that answers no ping, or takes no reply, for so long, s, has gone',
        range=(1.0, 3600.0),
    )
    prompt: str = _param('', 'What the robot is to do where a client sends no prompt')
    horizon: int = _param(
        0,
        "Actions of a chunk that are sent, at most; 0: as the contract's openpi says",
        range=(0, 1000),
    )
    capsule_mib: int = _param(
        64, 'Of the capsules of a session, MiB; the oldest give way', range=(0, 2**20)
    )
    all_capsules_mib: int = _param(
        1024,
        'Of the capsules of all sessions together, MiB; those used least recently give way, '
        'whose they are',
        range=(0, 2**24),
    )

    def __post_init__(self) -> None:
        if not self.api_keys and not _is_loopback(self.host):
            raise ValueError(
                f'host {self.host} can be reached by others, and api_keys is empty: write a key '
                'into a file and name that, or listen on 127.0.0.1'
            )

    def keys(self) -> tuple[str, ...]:
        """Those of the file. Raises ValueError, OSError."""
        if not self.api_keys:
            return ()
        lines = Path(self.api_keys).expanduser().read_text(encoding='utf-8').splitlines()
        keys = tuple(line.strip() for line in lines if line.strip())
        if not keys:
            raise ValueError(f'{self.api_keys} has no key: write one a line')
        return keys


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == 'localhost'
