"""The files of a server that must be private: API keys and the TLS certificate with its key."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import IO

NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]{0,63}')
SHORTEST = 16  # characters of a key
FORM = 'write NAME KEY on each line, for example "arm-1 KEY", and # before a comment'


def read_keys(path: str) -> dict[str, str]:
    """Return the name of each key. Several keys may have one name, for example during a rotation.

    Raises ValueError for an invalid file and for one that other users can access, and OSError. No
    message contains a key.
    """
    with open(Path(path).expanduser(), encoding='utf-8') as file:
        check_private(file)
        try:
            lines = file.read().split('\n')
        except UnicodeDecodeError:
            raise ValueError(f'{path} must be text in UTF-8; {FORM}') from None
    names: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and not words[0].startswith('#'):
            name, key = _read(f'{path}, line {number}', words)
            if key in names:
                raise ValueError(f'{path}, line {number}: the key must differ from those before')
            names[key] = name
    if not names:
        raise ValueError(f'{path} must have a key (got none); {FORM}')
    return names


def check_private(file: IO) -> None:
    mode = os.fstat(file.fileno()).st_mode & 0o777
    if mode & 0o077:
        raise ValueError(
            f'{file.name} must be accessible to its owner only (got mode {mode:o}); '
            f'run chmod 600 {file.name}'
        )


def _read(where: str, words: list[str]) -> tuple[str, str]:
    if len(words) != 2:
        raise ValueError(f'{where} must be a name and a key (got {len(words)} words); {FORM}')
    name, key = words
    if not NAME.fullmatch(name):
        raise ValueError(
            f'{where}: the name must be 1 to 64 letters, digits, dots, _ and -; {FORM}'
        )
    if len(key) < SHORTEST or not key.isprintable():
        raise ValueError(
            f'{where}: the key of {name} must have at least {SHORTEST} printable characters '
            f'(got {len(key)}); create one with: openssl rand -hex 16'
        )
    return name, key


class Certificate:
    """A TLS context for new connections, and the two files from which it is read.

    `chain`: path of the certificate with those of its issuers, PEM. `key`: path of the private
    key, PEM, without a passphrase. Raises ValueError, OSError.

    The server sends no TLS 1.3 session tickets. A client such as openpi's reads in one thread and
    writes in another, which OpenSSL does not allow at once on one connection: a client that reads
    a ticket while it writes its first request can block for ever. Policy connections are long,
    so that resuming a session saves little.
    """

    def __init__(self, chain: str, key: str) -> None:
        self._paths = [Path(path).expanduser() for path in (chain, key)]
        self.context = self._read()

    def reload(self) -> None:
        """Use the current files for new connections.

        Raises ValueError, OSError; then the certificate does not change.
        """
        self._read()  # validates both files first, so that they never mismatch
        chain, key = self._paths
        self.context.load_cert_chain(chain, key, password=_no_password)

    def _read(self) -> ssl.SSLContext:
        chain, key = self._paths
        with open(key) as file:
            check_private(file)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.num_tickets = 0  # see `Certificate`
        try:
            context.load_cert_chain(chain, key, password=_no_password)
        except ssl.SSLError as error:
            raise ValueError(
                f'certificate and certificate_key must be a certificate and its private key in '
                f'PEM (got {chain}, {key}: {error.reason or error}); create a pair with: openssl '
                'req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out certificate.pem'
            ) from None
        return context


def _no_password() -> str:
    return ''  # so that OpenSSL does not prompt on the terminal
