"""A request with an Origin is refused with the remedy, unless the server lists the origin."""

import pytest
from server_cases import PATIENCE, running_server
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from embodied_kv.serving.websocket.config import ServerConfig

LISTED = 'https://lab.example:8443, http://localhost:3000'


def opening(port, *origins):
    """Connect with these Origin headers."""
    return connect(
        f'ws://127.0.0.1:{port}',
        additional_headers=[('Origin', origin) for origin in origins],
        compression=None,
        open_timeout=PATIENCE,
        proxy=None,
    )


def refusal(port, *origins):
    with pytest.raises(InvalidStatus) as told:
        opening(port, *origins)
    assert told.value.response.status_code == 403
    return told.value.response.body.decode()


def test_an_origin_is_refused_with_the_remedy():
    with running_server() as opened:
        said = refusal(opened.port, f'http://127.0.0.1:{opened.port}')  # as websocket-client sends
        assert 'suppress_origin=True' in said and 'allowed_origins' in said


def test_listed_origins_connect_and_others_do_not():
    with running_server(allowed_origins=LISTED) as opened:
        for origin in ('https://lab.example:8443', 'http://LOCALHOST:3000'):
            with opening(opened.port, origin) as client:
                assert client.recv(PATIENCE)
        others = 'https://lab.example', 'http://lab.example:8443', 'null', ''
        for origin in others:
            refusal(opened.port, origin)
        refusal(opened.port, 'http://localhost:3000', 'https://other.example')


@pytest.mark.parametrize('wrong', ['*', 'lab.example', 'https://*', 'https://lab.example/page'])
def test_invalid_origin_parameter_is_refused(wrong):
    with pytest.raises(ValueError, match='allowed_origins must be SCHEME://HOST'):
        ServerConfig(allowed_origins=wrong)
