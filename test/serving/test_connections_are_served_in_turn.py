"""Connections are served fairly, whatever sessions and deadlines they name."""

from server_cases import busy, libero, packed, running_server, until

from embodied_kv.fleet.schedulers import Usage


def test_usage_is_counted_by_connection(monkeypatch):
    add, accounts = Usage.add, []

    def counted(self, account, requests, now):
        accounts.append(account)
        add(self, account, requests, now)

    monkeypatch.setattr(Usage, 'add', counted)
    with running_server() as opened, opened.client() as one, opened.client() as other:
        for name in ('a', 'b', 'c'):
            one.infer(libero() | {'session_id': name})
        other.infer(libero() | {'session_id': 'a'})  # the former connection does not count
        other.infer(libero())
    first, second = accounts[0], accounts[3]
    assert accounts == [first] * 3 + [second] * 2 and first != second


def test_connection_with_more_usage_is_served_later():
    with running_server() as opened, opened.client() as flood, opened.client() as modest:
        flood.infer(libero() | {'session_id': 'fresh'})
        modest.infer(libero() | {'session_id': 'm'})
        scheduler = opened.sessions._server.dispatcher.scheduler
        account = opened.sessions._open['fresh'].account
        with busy(opened), opened.client() as first:
            first.socket.send(packed(libero()))
            until(lambda: opened.sessions.values()['batches'] == 3)
            flood.socket.send(packed(libero() | {'session_id': 'fresh'}))
            modest.socket.send(packed(libero() | {'session_id': 'm'}))
            until(lambda: opened.sessions.values()['waiting'] == 2)
            waiting = list(opened.sessions._server.dispatcher.queue.values())
            now = max(request.arrived for request in waiting)
            scheduler._usage.add(account, 1000.0, now)
            assert [r.robot for r in scheduler.order(waiting, now)] == ['m', 'fresh']
