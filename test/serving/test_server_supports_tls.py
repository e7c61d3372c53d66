"""A certificate enables TLS; an invalid one is refused with the remedy."""

import logging
import select
import socket
import ssl
import subprocess
from contextlib import ExitStack

import pytest
from server_cases import PATIENCE, running_server, unpacked, until
from websockets.sync.client import connect

from embodied_kv.serving.remote_policy.connection import Address, RemotePolicy
from embodied_kv.serving.websocket import admission, server
from embodied_kv.serving.websocket.config import ServerConfig


def certificate(folder, name='localhost'):
    """Create a self-signed certificate; return the settings with the paths of it and its key."""
    chain, key = folder / 'certificate.pem', folder / 'key.pem'
    subprocess.run(
        ['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2']
        + ['-subj', f'/CN={name}', '-addext', 'subjectAltName=IP:127.0.0.1']
        + ['-keyout', key, '-out', chain],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    return {'certificate': str(chain), 'certificate_key': str(key)}


def connected(port, trusted):
    return connect(
        f'wss://127.0.0.1:{port}',
        ssl=ssl.create_default_context(cafile=trusted),
        compression=None,
        open_timeout=PATIENCE,
        proxy=None,
    )


def subject(client):
    return dict(pair for (pair,) in client.socket.getpeercert()['subject'])['commonName']


def test_a_client_that_trusts_the_certificate_is_served(tmp_path):
    pair = certificate(tmp_path)
    with running_server(**pair) as opened, connected(opened.port, pair['certificate']) as client:
        assert unpacked(client.recv(PATIENCE))


def test_no_session_ticket_is_sent_that_a_client_might_read_while_it_writes(
    tmp_path,
):
    pair = certificate(tmp_path)
    with running_server(**pair) as opened, connected(opened.port, pair['certificate']) as client:
        assert unpacked(client.recv(PATIENCE))  # a ticket would precede this message
        assert client.socket.version() == 'TLSv1.3' and not client.socket.session.has_ticket


def test_a_client_that_does_not_trust_it_does_not_connect(tmp_path):
    with (
        running_server(**certificate(tmp_path)) as opened,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        connected(opened.port, None)


def test_sockets_without_a_handshake_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(server, 'OPENING_SECONDS', 2 * PATIENCE)  # none is closed for its age
    pair = certificate(tmp_path)
    with ExitStack() as sockets, running_server(**pair, max_connections=1) as opened:
        silent = [
            sockets.enter_context(socket.create_connection(('127.0.0.1', opened.port)))
            for _ in range(60)
        ]
        most = 2 + admission.OPENING
        until(lambda: len(select.select(silent, [], [], 0)[0]) >= len(silent) - most)
        with connected(opened.port, pair['certificate']) as client:
            assert unpacked(client.recv(PATIENCE))


@pytest.mark.parametrize('is_trusted', [True, False])
def test_a_robot_trusts_the_certificate_of_its_environment(tmp_path, monkeypatch, is_trusted):
    pair = certificate(tmp_path)
    monkeypatch.setenv('SSL_CERT_FILE', pair['certificate'] if is_trusted else '')
    with running_server(**pair) as opened:
        said, address = [], Address(f'wss://127.0.0.1:{opened.port}', reply_timeout=PATIENCE)
        robot = RemotePolicy(address, lambda extensions: None, said.append)
        robot.start()
        try:
            until(lambda: said or robot.is_connected)
            assert robot.is_connected == is_trusted
            assert is_trusted or 'certificate verify failed' in said[0]
        finally:
            robot.stop()


def test_a_new_certificate_is_used_after_a_reload(tmp_path, caplog):
    pair = certificate(tmp_path)
    with running_server(**pair) as opened, caplog.at_level(logging.INFO):
        with connected(opened.port, pair['certificate']) as client:
            assert subject(client) == 'localhost'
            certificate(tmp_path, 'renewed')
            opened.server.reload()
            until(lambda: 'certificate reloaded' in caplog.text)
            with connected(opened.port, pair['certificate']) as newcomer:
                assert subject(newcomer) == 'renewed'
            (tmp_path / 'certificate.pem').write_text('x')
            opened.server.reload()
            until(lambda: 'the certificate was not reloaded' in caplog.text)
            assert unpacked(client.recv(PATIENCE))


@pytest.mark.parametrize(
    'change, said',
    [
        (lambda chain, key: key.chmod(0o644), 'key.pem must be accessible to its owner only'),
        (lambda chain, key: key.write_text('x'), 'must be a certificate and its private key'),
        (lambda chain, key: chain.write_text('x'), 'must be a certificate and its private key'),
    ],
)
def test_invalid_certificate_is_refused(tmp_path, change, said):
    config = ServerConfig(**certificate(tmp_path))
    change(tmp_path / 'certificate.pem', tmp_path / 'key.pem')
    with pytest.raises(ValueError, match=said):
        config.tls()


def test_certificate_without_its_key_is_refused():
    with pytest.raises(ValueError, match='must both be paths, or both be empty'):
        ServerConfig(certificate='certificate.pem')
