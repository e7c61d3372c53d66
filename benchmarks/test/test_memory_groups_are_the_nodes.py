"""Groups of the judges' segments come from the node's encoder, or hold true links."""

import numpy as np

from benchmarks.memory.grouped import (
    MEASURES,
    chain_sentence,
    encoded_groups,
    linked_groups,
    pieces_of,
    record_sentence,
)
from embodied_kv.memory.encoder import HashingEncoder
from embodied_kv.memory.groups import Grouping
from training.judge.chains import END, ENDS, KEYS, POINTER
from training.records.records import DITTO, VALUE

ENCODER = HashingEncoder()


def test_sentences_name_what_tokens_point_to():
    pointer, end = chain_sentence(3, POINTER + 5), chain_sentence(5, END + 7)
    assert pointer.endswith(chain_sentence(5, END).split(':')[0]) and end.endswith('shelf 7')
    sentences = {chain_sentence(k, END + e) for k in range(KEYS) for e in range(ENDS)}
    assert len(sentences) == KEYS * ENDS
    first = record_sentence(0, -1, [VALUE + 16 * i + i for i in range(4)])
    assert [f'{name} {i}' in first for i, name in enumerate(MEASURES)] == [True] * 4
    later = record_sentence(1, 0, [DITTO, *range(VALUE + 16, VALUE + 19)])
    assert f'like the {first.split(":")[0]}' in later and 'weight the same' in later


def test_similar_sentences_share_a_group_and_others_do_not():
    said = ['red cube: on the left table', 'red cube: on the left table, too', 'arm: idle']
    assert encoded_groups(ENCODER, said, 8).tolist() == [0, 0, 2]


def test_a_group_of_the_encoder_is_as_large_as_the_node_allows():
    first = encoded_groups(ENCODER, ['red cube: on shelf 1'] * 20, 2)
    assert np.bincount(first).max() == Grouping.max_members


def test_linked_groups_hold_links_until_they_are_full():
    assert linked_groups([-1, 0, -1, 1, 2]).tolist() == [0, 0, 2, 0, 2]
    chain = linked_groups(list(range(-1, 19)))
    assert np.bincount(chain)[[0, 8, 16]].tolist() == [8, 8, 4]


def test_a_static_group_stands_together_and_its_offsets_are_its_tokens():
    ids = [[i, i, i] for i in range(5)]
    first, static = np.array([0, 1, 0, 1, 4]), np.array([True, False, True, False, False])
    pieces = pieces_of(ids, first, static)
    assert [piece.segment for piece in pieces] == ['0', '2', '1', '3', '4']
    assert [piece.offset for piece in pieces] == [0, 3, 0, 0, 0]
    assert len({piece.unit for piece in pieces}) == 4


def test_segments_of_a_group_that_is_not_static_are_units():
    pieces = pieces_of([[i] for i in range(5)], np.zeros(5, int), np.zeros(5, bool))
    assert len({piece.unit for piece in pieces}) == 5
