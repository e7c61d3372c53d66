"""A mission plans from all memory segments, however many; a query returns the newest ones last."""

from itertools import islice
from types import SimpleNamespace

from embodied_kv.capsule.tiers import Tier
from embodied_kv.demo.domain import TabletopDomain
from embodied_kv.msg import MemorySegment
from embodied_kv.nodes.missions.adapter import MissionAdapter
from embodied_kv.srv import MemoryQuery

NOTES = [MemorySegment(id=f'note {i}', text=f'it rained on day {i}') for i in range(3000)]
NEWEST = [
    MemorySegment(id='red cube', text='red cube: in the green bin'),
    MemorySegment(id='green bin', text='green bin: holds the red cube'),
    MemorySegment(id='task 7', text='task 7: put the red cube into the green bin, from the table'),
]


class Memory:
    """Answers a query with its first segments, in the order in which they were stored."""

    def call(self, name, **fields):
        assert name == 'memory/query'
        asked = MemoryQuery.Request(**fields)
        return SimpleNamespace(segments=[*islice(NOTES + NEWEST, asked.segments)])


def test_what_came_last_is_known():
    session = SimpleNamespace(registry=None)
    table = TabletopDomain()
    crew = MissionAdapter(
        Memory(), session, table, True, Tier.HOST, 1.0, on_words=print, on_fault=print
    )
    assert crew.moves() == (7,)
    assert crew.refusal('take the red cube out of the green bin') == ''
