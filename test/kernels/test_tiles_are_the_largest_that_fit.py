"""Attention tiles fill a card's shared memory and splits fill its processors, without excess."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.kernels.tiles import (
    KIB,
    LIMITS,
    Card,
    Tile,
    attention_tile,
    card_of,
    shared_bytes,
    splits_of,
)

CARDS = st.builds(
    Card,
    st.sampled_from([*LIMITS, (7, 5), (10, 0)]),
    st.integers(64, 256).map(lambda kib: kib * KIB),
    st.just(1),
)


@given(st.integers(1, 5000), st.integers(1, 256), st.sampled_from([2, 4]), CARDS)
def test_a_tile_fits(queries, head_dim, itemsize, card):
    tile = attention_tile(queries, head_dim, itemsize, card)
    size = tile.queries, tile.keys, tile.stages
    assert shared_bytes(head_dim, itemsize, *size, card.capability) <= card.shared
    assert min(tile.queries, tile.keys) >= 16 and tile.stages >= 1


@pytest.mark.parametrize(
    'capability, tile',
    [
        ((8, 0), (64, 2)),
        ((8, 7), (64, 2)),
        ((8, 9), (32, 2)),
        ((9, 0), (64, 2)),
        ((12, 0), (32, 2)),
    ],
)
def test_cards_with_more_room_take_more_keys(capability, tile):
    chosen = attention_tile(400, 256, 2, Card(capability, LIMITS[capability], 1))
    assert chosen == Tile(64, *tile, 8)


@given(st.integers(1, 500), st.integers(1, 5000), st.sampled_from([16, 64]))
def test_splits_fill_the_card_and_are_worth_it(programs, keys, queries):
    tile, card = Tile(queries, 64, 2, 4), Card((9, 0), LIMITS[9, 0], 132)
    splits = splits_of(programs, keys, tile, card)
    assert splits == 1 or (programs * splits <= 132 and keys // splits >= max(64, 2 * queries))


def test_one_stream_is_read_by_many_programs():
    card = Card((9, 0), LIMITS[9, 0], 132)
    assert splits_of(1, 968 + 96, Tile(16, 64, 3, 4), card) == 16
    assert splits_of(7, 968 + 50, Tile(64, 64, 2, 8), card) == 7
    assert splits_of(200, 968, Tile(16, 64, 3, 4), card) == 1


def test_tile_that_fits_no_card_is_an_error():
    with pytest.raises(ValueError, match='shared memory; use a narrower dtype'):
        attention_tile(8, 256, 4, Card((7, 5), 16 * KIB, 1))


def test_an_unknown_card_is_asked(monkeypatch):
    told = SimpleNamespace(
        major=10, minor=0, shared_memory_per_block_optin=12345, multi_processor_count=7
    )
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: told)
    assert card_of.__wrapped__(torch.device('cuda')) == Card((10, 0), 12345, 7)
    told.major, told.minor = 8, 9  # the limit of a known card is not queried
    assert card_of.__wrapped__(torch.device('cuda')).shared == LIMITS[8, 9]
