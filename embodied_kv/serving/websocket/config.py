"""The settings of the policy server and of its engine: ROS parameters and command-line options."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, fields
from typing import Any

from embodied_kv.engine_config import EngineConfig
from embodied_kv.parameter import parameter
from embodied_kv.serving.websocket.credentials import Certificate, read_keys

MIB = 2**20
ORIGIN = re.compile(r'[a-z][a-z0-9+.-]*://[^/\s,*]+')


def _of_engine(name: str, default: int | float) -> Any:
    """Return a field of EngineConfig with another default."""
    (known,) = (f for f in fields(EngineConfig) if f.name == name)
    return field(default=default, metadata=known.metadata)


@dataclass(frozen=True)
class ServedEngineConfig(EngineConfig):
    """Configuration of an engine with defaults for many clients, which it serves in batches."""

    max_batch_robots: int = _of_engine('max_batch_robots', 8)
    # For a batch, the newest frame of each client, and each stream.
    rows: int = _of_engine('rows', 80)
    reserved_rows: int = _of_engine('reserved_rows', 40)
    streams: int = _of_engine('streams', 16)
    compressed_rows: int = _of_engine('compressed_rows', 0)
    deadline_margin_ms: float = _of_engine('deadline_margin_ms', 1.0)


@dataclass(frozen=True)
class ServerConfig:
    """Access, limits and timeouts of the server. Raises ValueError with the remedy."""

    host: str = parameter(
        '127.0.0.1', 'Address to listen on; any address but loopback requires api_keys_file'
    )
    port: int = parameter(8000, 'Port; 0 selects a free one', range=(0, 65535))
    health_port: int = parameter(
        0,
        'Additional port with /healthz and /readyz only, served by a separate thread. 0: these '
        'pages are on the main port only',
        range=(0, 65535),
    )
    api_keys_file: str = parameter(
        '',
        'Path of a file with NAME KEY on each line, accessible to its owner only, read again on '
        'SIGHUP. Empty: authentication is disabled',
        old=('api_keys',),
    )
    certificate: str = parameter(
        '',
        'Path of a TLS certificate in PEM with those of its issuers, read again on SIGHUP; '
        'clients connect by wss:// then. Empty: no TLS',
    )
    certificate_key: str = parameter(
        '', 'Path of the private key in PEM, accessible to its owner only'
    )
    allowed_origins: str = parameter(
        '',
        'Origins from which web pages may connect, for example https://lab.example:8443, '
        'separated by commas. Empty: each request with an Origin header is refused',
        old=('origins',),
    )
    max_connections: int = parameter(
        64, 'Maximum number of connected clients', range=(1, 4096), old=('connections',)
    )
    max_connections_per_key: int = parameter(
        16,
        'Maximum number of connected clients with the same key',
        range=(1, 4096),
        old=('connections_per_key',),
    )
    max_message_mib: int = parameter(
        32, 'Maximum size (MiB) of a message', range=(1, 1024), old=('message_mib',)
    )
    message_buffer_mib: int = parameter(
        512,
        'Maximum size (MiB) of all messages that are read or answered at a time; each name of a '
        'key has an equal part, at least max_message_mib. Further messages wait',
        range=(1, 2**20),
        old=('memory_mib',),
    )
    max_request_rate: float = parameter(
        100.0,
        'Maximum requests per second of a client; further ones wait',
        range=(0.1, 10_000.0),
        old=('request_rate',),
    )
    request_timeout: float = parameter(
        30.0,
        'Maximum time (s) for the answer to a request; then it fails',
        range=(0.1, 3600.0),
        old=('request_seconds',),
    )
    client_timeout: float = parameter(
        60.0,
        'Maximum time (s) in which a client must answer a ping and accept a reply; then it is '
        'disconnected',
        range=(1.0, 3600.0),
        old=('silence_seconds',),
    )
    drain_timeout: float = parameter(
        10.0,
        'Maximum time (s) for which a shutdown waits for requests in flight',
        range=(0.0, 3600.0),
        old=('drain_seconds',),
    )
    default_prompt: str = parameter(
        '', 'Instruction for clients that send no prompt', old=('prompt',)
    )
    horizon: int = parameter(
        0,
        "Maximum number of actions of a chunk that are sent; 0: the contract's openpi.horizon",
        range=(0, 1000),
    )
    session_capsules_mib: int = parameter(
        64,
        'Maximum size (MiB) of the capsules of a session; the oldest are evicted',
        range=(0, 2**20),
        old=('capsule_mib',),
    )
    all_capsules_mib: int = parameter(
        1024,
        'Maximum size (MiB) of the capsules of all sessions; each key has an equal part, in which '
        'the least recently used capsules are evicted first',
        range=(0, 2**24),
    )

    def __post_init__(self) -> None:
        for origin in self.origin_set:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    'allowed_origins must be SCHEME://HOST or SCHEME://HOST:PORT, separated by '
                    f'commas (got {origin}); write, for example, https://lab.example:8443'
                )
        if bool(self.certificate) != bool(self.certificate_key):
            raise ValueError(
                f'certificate and certificate_key must both be paths, or both be empty (got '
                f'{self.certificate!r}, {self.certificate_key!r}); name both'
            )
        if not self.api_keys_file and not _is_loopback(self.host):
            raise ValueError(
                f'host must be loopback while api_keys_file is empty (got {self.host}); write a '
                'key into a file and set api_keys_file to its path, or listen on 127.0.0.1'
            )

    @property
    def origin_set(self) -> frozenset[str]:
        """The origins from which web pages may connect, in lower case."""
        listed = (origin.strip().lower() for origin in self.allowed_origins.split(','))
        return frozenset(origin for origin in listed if origin)

    def keys(self) -> dict[str, str]:
        """Return the names by key, empty without a file. Raises ValueError, OSError."""
        keys = read_keys(self.api_keys_file) if self.api_keys_file else {}
        names = len(set(keys.values())) or 1
        if names * self.max_message_mib > self.message_buffer_mib:
            raise ValueError(
                'message_buffer_mib must be at least max_message_mib for each name of a key, '
                f'{names} * {self.max_message_mib} (got {self.message_buffer_mib}); raise '
                'message_buffer_mib, or lower max_message_mib'
            )
        return keys

    def tls(self) -> Certificate | None:
        """Return the certificate; None without one. Raises ValueError, OSError."""
        return Certificate(self.certificate, self.certificate_key) if self.certificate else None

    @property
    def scheme(self) -> str:
        return 'wss' if self.certificate else 'ws'


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == 'localhost'
