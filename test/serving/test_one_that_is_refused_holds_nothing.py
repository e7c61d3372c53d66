"""A client that is refused, and does not close, holds neither session nor row nor place."""

from door_cases import RawClient, door, libero, packed, until

from embodied_kv.serving.websocket import server


def of(opened):
    return opened.sessions.values()['sessions'], opened.sessions.values()['robots']


def refused(opened, client):
    client.say(packed(libero() | {'session_id': 'arm'}))
    until(lambda: of(opened) == (1, 1))
    client.say(packed([1, 2]))


def test_its_session_ends_before_its_connection(monkeypatch):
    monkeypatch.setattr(server, 'GOODBYE_SECONDS', 3600.0)  # it has all the time there is
    with door(silence_seconds=3600.0) as opened, RawClient(opened.port) as silent:
        refused(opened, silent)
        until(lambda: of(opened) == (0, 0))
        until(lambda: opened.engine.kv.stats().leases == 0)
        assert opened.server.counts()['sockets'] == 1
        with opened.client() as other:
            other.infer(libero() | {'session_id': 'arm'})
        monkeypatch.undo()  # the server ends at its usual pace


def test_its_place_is_free_soon_after(monkeypatch):
    monkeypatch.setattr(server, 'GOODBYE_SECONDS', 0.01)
    with door(silence_seconds=3600.0, connections=1) as opened, RawClient(opened.port) as silent:
        refused(opened, silent)
        until(lambda: opened.server.counts()['sockets'] == 0)
        with opened.client() as other:
            other.infer(libero())
