"""A reopened memory has the same text, groups, steps and KV, consistent with each other."""

import pytest
from kept import is_whole, kv

from embodied_kv.memory.encoder import HashingEncoder
from embodied_kv.memory.groups import Grouping
from embodied_kv.memory.memory import Memory
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.memory.store import MemoryStore

FACTS = [
    ('red cube', 'object', 'red cube: on the table'),
    ('red ball', 'object', 'red ball: on the table'),
    ('task 1', 'task', 'picked up green cylinder from shelf'),
]


class Meter(HashingEncoder):
    """An encoder that counts the texts it encodes."""

    def __init__(self, name=None):
        super().__init__()
        self.name, self.texts = name or self.name, 0

    def encode(self, texts):
        self.texts += len(texts)
        return super().encode(texts)


def opened(folder, encoder=None, model='model', renew=False):
    store = MemoryStore(folder, model, renew=renew)
    encoder = encoder or HashingEncoder()
    return Memory(store, encoder, len, 100, Grouping(similarity=0.4))


@pytest.fixture
def memory(tmp_path):
    memory = opened(tmp_path)
    memory.upsert(*FACTS)
    yield memory
    memory.store.close()


def keys(units):
    return [unit.key for unit in units]


def reopened(memory, **how):
    memory.store.close()
    return opened(memory.store.folder, **how)


def test_units_follow_the_groups(memory):
    assert [unit.ids for unit in memory.units()] == [(id,) for id, _, _ in FACTS]
    assert len(memory.advance(10)) == 2
    assert [unit.ids for unit in memory.units()] == [('red cube', 'red ball'), ('task 1',)]
    memory.upsert(('red ball', 'object', 'red ball: in the bin'))
    assert [unit.ids for unit in memory.units()] == [('task 1',), ('red cube',), ('red ball',)]


def test_only_what_changed_has_to_be_computed(memory):
    memory.advance(10)
    units = memory.units()
    assert memory.missing(units) == units
    memory.store.store_kv(*(kv(unit) for unit in units))
    assert memory.missing(memory.units()) == ()
    memory.upsert(FACTS[0], ('red ball', 'object', 'red ball: in the bin'))
    assert [unit.ids for unit in memory.missing(memory.units())] == [('red cube',), ('red ball',)]


def test_a_question_finds_what_it_is_about(memory):
    memory.advance(10)
    (found,) = memory.retrieve('where is the red ball?', 1000, segments=1)
    assert found.ids == ('red cube', 'red ball') and found.score > 0.3
    assert len(memory.retrieve('where is the red ball?', 1000)) == 2


def test_reopened_memory_has_its_groups_and_kv(memory):
    memory.advance(10)
    memory.upsert(('task 2', 'task', 'picked up yellow cylinder from shelf'))
    memory.store.store_kv(*(kv(unit) for unit in memory.units()))
    wanted, groups = memory.units(), [memory.groups.of(id).number for id in memory._segments]
    encoder = Meter()
    again = reopened(memory, encoder=encoder)
    assert again.units() == wanted and again.missing(wanted) == () and encoder.texts == 0
    assert [again.groups.of(id).number for id in again._segments] == groups
    assert all(is_whole(again.store, unit) for unit in wanted)
    again.groups.check_integrity()
    again.store.close()


def test_another_encoder_embeds_all_segments_once(memory):
    encoder = Meter('other')
    again = reopened(memory, encoder=encoder)
    assert encoder.texts == 3
    again = reopened(again, encoder=encoder)
    assert encoder.texts == 3
    again.store.close()


def test_another_model_keeps_text_and_groups_when_renewed(memory):
    memory.advance(10)
    memory.store.store_kv(*(kv(unit) for unit in memory.units()))
    wanted = memory.units()
    again = reopened(memory, model='other', renew=True)
    assert again.units() == wanted and again.missing(wanted) == wanted
    again.store.close()


def test_segments_that_a_crash_left_without_a_group_get_one(memory):
    memory.store._records._db.execute('UPDATE segments SET cluster = NULL, embedding = NULL')
    again = reopened(memory)
    again.groups.check_integrity()
    assert len(again.units()) == 3 and again.groups.of('red cube') is again.groups.of('red ball')
    again.store.close()


def test_the_same_text_again_changes_and_encodes_nothing(memory):
    memory.encoder = Meter()
    (change,) = memory.upsert(FACTS[0])
    assert not change.changed and memory.encoder.texts == 0


def test_a_removed_segment_is_in_no_unit(memory):
    memory.remove('red cube')
    assert [unit.ids for unit in memory.units()] == [('red ball',), ('task 1',)]
    assert len(memory) == len(memory.store.list()) == 2
    with pytest.raises(RobotMemoryError, match="segment 'red cube' does not exist"):
        memory.remove('red cube')


@pytest.mark.parametrize(
    ('facts', 'message'),
    [
        ([('a', 'object', 'x' * 101)], "segment 'a' must have at most 100 tokens"),
        ([('a', 'object', 'x'), ('a', 'object', 'y')], 'ids of one change must be distinct'),
        ([('a', 'object', 'x'), ('b', 'thing', 'y')], 'must be one of object'),
    ],
)
def test_bad_input_changes_nothing(memory, facts, message):
    before = memory.units()
    with pytest.raises(RobotMemoryError, match=message):
        memory.upsert(*facts)
    assert memory.units() == before and len(memory.store.list()) == 3
    memory.groups.check_integrity()


def test_a_removal_keeps_its_group_young_over_a_restart(memory):
    memory.upsert(('red mug', 'object', 'red mug: on the table'))
    memory.advance(10)
    memory.remove('red mug')
    memory.advance(9)
    apart = [('task 1',), ('red cube',), ('red ball',)]
    assert [unit.ids for unit in memory.units()] == apart
    again = reopened(memory)
    assert [unit.ids for unit in again.units()] == apart
    again.advance()
    assert [unit.ids for unit in again.units()] == [('red cube', 'red ball'), ('task 1',)]
    again.store.close()
