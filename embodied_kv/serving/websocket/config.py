"""The settings of the policy server and of its engine: ROS parameters, and options of the command.

Knows names, defaults and ranges. Does not know ROS, nor what a command line looks like.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import Field, dataclass, field, fields

from embodied_kv.engine_config import EngineConfig
from embodied_kv.serving.websocket.keys import read_keys
from embodied_kv.serving.websocket.tls import Certificate

MIB = 2**20
ORIGIN = re.compile(r'[a-z][a-z0-9+.-]*://[^/\s,*]+')


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
    health_port: int = _param(
        0,
        'Port of /healthz and /readyz alone, served by a thread of its own; 0: they are pages of '
        'the main port only',
        range=(0, 65535),
    )
    api_keys: str = _param(
        '',
        'Path of a file with NAME KEY on each line, accessible to its owner only, and read again '
        'on SIGHUP. Empty: authentication is disabled',
    )
    certificate: str = _param(
        '',
        'Path of a TLS certificate in PEM, with those of its issuers, read again on SIGHUP; the '
        'server speaks wss:// then. Empty: no TLS',
    )
    certificate_key: str = _param(
        '', 'Path of its private key in PEM, accessible to its owner only'
    )
    origins: str = _param(
        '',
        'Origins from which web pages may connect, for example https://lab.example:8443, '
        'separated by commas. Empty: each request with an Origin header is refused',
    )
    connections: int = _param(64, 'Clients at the same time', range=(1, 4096))
    connections_per_key: int = _param(
        16, 'Of these, clients that come with the same key', range=(1, 4096)
    )
    message_mib: int = _param(32, 'Longest message, MiB', range=(1, 1024))
    memory_mib: int = _param(
        512,
        'Messages of all clients that are read or answered at a time, MiB; each name of a key has '
        'the same part of it, at least message_mib. More messages wait',
        range=(1, 2**20),
    )
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
    drain_seconds: float = _param(
        10.0,
        'Maximum time (s) in which a server that ends answers the requests in flight',
        range=(0.0, 3600.0),
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
        'Size of the capsules of all sessions together, MiB; each key has an equal share, in '
        'which the least recently used capsules are evicted first',
        range=(0, 2**24),
    )

    def __post_init__(self) -> None:
        for origin in self.allowed_origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f'origins must be SCHEME://HOST or SCHEME://HOST:PORT, separated by commas '
                    f'(got {origin}); write, for example, https://lab.example:8443'
                )
        if bool(self.certificate) != bool(self.certificate_key):
            raise ValueError(
                f'certificate and certificate_key must both be paths, or both be empty (got '
                f'{self.certificate!r}, {self.certificate_key!r}); name both'
            )
        if not self.api_keys and not _is_loopback(self.host):
            raise ValueError(
                f'host {self.host} can be reached by others, and api_keys is empty: write a key '
                'into a file and name that, or listen on 127.0.0.1'
            )

    @property
    def allowed_origins(self) -> frozenset[str]:
        """Return the origins from which web pages may connect, in lower case."""
        listed = (origin.strip().lower() for origin in self.origins.split(','))
        return frozenset(origin for origin in listed if origin)

    def keys(self) -> dict[str, str]:
        """Return the name of each key; none without a file. Raises ValueError, OSError."""
        keys = read_keys(self.api_keys) if self.api_keys else {}
        names = len(set(keys.values())) or 1
        if names * self.message_mib > self.memory_mib:
            raise ValueError(
                f'memory_mib must be at least message_mib for each name of a key, '
                f'{names} * {self.message_mib} (got {self.memory_mib}); raise memory_mib, or '
                'lower message_mib'
            )
        return keys

    def tls(self) -> Certificate | None:
        """Return the certificate; None without one. Raises ValueError, OSError."""
        return Certificate(self.certificate, self.certificate_key) if self.certificate else None

    @property
    def scheme(self) -> str:
        """Return wss or ws."""
        return 'wss' if self.certificate else 'ws'


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == 'localhost'
