"""The certificate of the server. Knows files of PEM and `ssl`. Does not know connections."""

from __future__ import annotations

import ssl
from pathlib import Path

from embodied_kv.serving.websocket.keys import check_private


class Certificate:
    """A TLS context for new connections, and the two files that it is read from.

    chain: path of the certificate and those of its issuers, PEM. key: path of the private key,
    PEM, without a passphrase. Raises ValueError, OSError.

    The server sends no session tickets of TLS 1.3. A client such as openpi's reads in one thread
    and writes in another, and OpenSSL does not allow both at once on one connection: a client
    that reads a ticket while it writes its first request can wait for ever. A policy connection is
    long, so that resuming a session saves little.
    """

    def __init__(self, chain: str, key: str) -> None:
        self._paths = [Path(path).expanduser() for path in (chain, key)]
        self.context = self._read()

    def reload(self) -> None:
        """Use the files as they are now for new connections. Raises ValueError, OSError.

        Where it raises, the certificate stays as it is.
        """
        self._read()  # else half of it might be in use
        self.context.load_cert_chain(*self._paths, password=_no_password)

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
    """In place of a question on the terminal."""
    return ''
