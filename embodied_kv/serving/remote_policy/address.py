"""Where a policy server is, and what opens its door. Knows files and addresses, not sockets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from websockets.exceptions import InvalidURI
from websockets.uri import parse_uri

from embodied_kv.text import shown


@dataclass(frozen=True)
class Address:
    """uri: ws://HOST:PORT or wss://…. key: what opens its door, '' for none.

    reply_seconds: that it has for a handshake, and for a reply. Raises ValueError.
    """

    uri: str
    key: str = field(default='', repr=False)
    reply_seconds: float = 5.0

    def __post_init__(self) -> None:
        try:
            parse_uri(self.uri)
        except (InvalidURI, ValueError) as error:  # ValueError: a port out of range
            raise ValueError(f'{shown(self.uri)!r} is no address: write ws://HOST:PORT') from error

    @staticmethod
    def key_of(file: str) -> str:
        """Return the only word of a file, '' where none is named. Raises ValueError, OSError."""
        if not file:
            return ''
        words = Path(file).expanduser().read_text(encoding='utf-8').split()
        if len(words) != 1:
            raise ValueError(
                f'{file} must contain the key and nothing else (got {len(words)} words); remove '
                'the name that the file of the server has before it'
            )
        return words[0]
