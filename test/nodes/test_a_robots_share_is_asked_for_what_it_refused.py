"""A question that a robot's share of streams has no room for is asked again, and no other."""

from collections import Counter

import pytest

from embodied_kv.nodes.fleet import missions
from embodied_kv.nodes.missions.calls import ServiceRefused


class Share(missions.FleetCalls):
    """Of streams: `room` are begun at a time, until the next rest."""

    def __init__(self, room):
        self.room = self.left = room
        self.sent, self.rests = Counter(), 0

    def _send(self, name, question):
        self.sent[question] += 1
        return question

    def _answered(self, name, question):
        if not self.left:
            raise ServiceRefused('full')
        self.left -= 1
        return type('Response', (), {'stream': ord(question)})

    def rest(self):
        self.left, self.rests = self.room, self.rests + 1


def test_what_began_is_not_asked_again():
    share = Share(room=2)
    assert share._streams('abcde') == {q: ord(q) for q in 'abcde'}
    assert share.sent == Counter(a=1, b=1, c=2, d=2, e=3)


def test_a_share_that_stays_full_refuses_in_the_end(monkeypatch):
    monkeypatch.setattr(missions, 'PATIENCE', -1.0)
    with pytest.raises(ServiceRefused, match='full'):
        Share(room=0)._streams('ab')
