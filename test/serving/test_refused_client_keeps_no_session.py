"""A refused client that does not close keeps neither a session nor a row nor a connection slot."""

from server_cases import RawClient, libero, packed, running_server, until

from embodied_kv.serving.websocket import server


def of(opened):
    return opened.sessions.values()['sessions'], opened.sessions.values()['robots']


def refused(opened, client):
    client.say(packed(libero() | {'session_id': 'arm'}))
    until(lambda: of(opened) == (1, 1))
    client.say(packed([1, 2]))


def test_session_ends_before_its_connection(monkeypatch):
    monkeypatch.setattr(server, 'GOODBYE_SECONDS', 3600.0)  # ample time for the client to close
    with running_server(client_timeout=3600.0) as opened, RawClient(opened.port) as silent:
        refused(opened, silent)
        until(lambda: of(opened) == (0, 0))
        until(lambda: opened.engine.kv.stats().leases == 0)
        assert opened.server.counts()['sockets'] == 1
        with opened.client() as other:
            other.infer(libero() | {'session_id': 'arm'})
        monkeypatch.undo()  # the server stops with its usual limit


def test_connection_slot_is_freed(monkeypatch):
    monkeypatch.setattr(server, 'GOODBYE_SECONDS', 0.01)
    with (
        running_server(client_timeout=3600.0, max_connections=1) as opened,
        RawClient(opened.port) as silent,
    ):
        refused(opened, silent)
        until(lambda: opened.server.counts()['sockets'] == 0)
        with opened.client() as other:
            other.infer(libero())
