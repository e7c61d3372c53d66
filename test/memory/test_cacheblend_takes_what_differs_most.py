"""CacheBlend recomputes its share of the tokens: those that differ most from stored KV."""

import pytest
import torch
from memory_cases import CONFIG, KvOfUnits, make_planner, make_prefill, make_prompt

from embodied_kv.memory.keep import Keep
from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.reuse import CacheBlend, always_computed
from embodied_kv.memory.schedule import Schedule, named_schedule, share

LAYERS = CONFIG.backbone.layers


class Watched(CacheBlend):
    """Notes what was computed, what it chose, and how far each token of the prompt was off."""

    seen = ()

    def after(self, state, computed):
        off = torch.full((state.prompt.length,), -torch.inf)
        off[state.positions] = state.deviation()
        mask = super().after(state, computed)
        object.__setattr__(self, 'seen', (*self.seen, (computed, mask, off)))
        return mask


def run(prompt, reuse):
    model = make_planner()
    return make_prefill(model, KvOfUnits(model, prompt)).run(prompt, reuse)[1]


@pytest.fixture
def prompt():
    return make_prompt(segments=8)


def test_an_even_share_is_chosen_once(prompt):
    reuse = Watched(Schedule((1.0, *[0.25] * (LAYERS - 1))))
    work, memory = run(prompt, reuse), int((~always_computed(prompt)).sum())
    rest = prompt.length - memory + share(0.25, memory)
    assert work.computed == [prompt.length, *[rest] * (LAYERS - 1)]
    (_, mask, off), *later = reuse.seen
    mine, left = mask & ~always_computed(prompt), ~mask
    assert off[mine].min() >= off[left].max()
    assert all((computed == after).all() for computed, after, _ in later)


def test_a_falling_share_is_chosen_in_each_layer_by_what_differs_there(prompt):
    schedule = Schedule((1.0, 0.5, 0.25, 0.1))
    reuse, memory = Watched(schedule), int((~always_computed(prompt)).sum())
    run(prompt, reuse)
    for ratio, (computed, mask, off) in zip(schedule.ratios[1:], reuse.seen, strict=True):
        mine, dropped = mask & ~always_computed(prompt), computed & ~mask
        assert int(mine.sum()) == share(ratio, memory) and not (mask & ~computed).any()
        assert off[mine].min() >= off[dropped].max()


@pytest.mark.parametrize('name', ['even', 'gradual', 'falling'])
def test_by_segment_it_computes_as_many_as_keep(prompt, name):
    schedule = named_schedule(name, LAYERS, 0.55)
    reuse = Watched(schedule, segments=True)
    run(prompt, reuse)
    for count, (_, mask, _) in zip(
        [share(r, 8) for r in schedule.ratios[1:]], reuse.seen, strict=True
    ):
        pieces = {int(i) for i in prompt.owner[mask] if i >= 0}
        assert len(pieces) == count
        assert all(mask[prompt.owner == i].all() for i in pieces), 'whole segments'
    same = Prompt(prompt.head, tuple(_alike(prompt)), prompt.question)
    assert run(same, reuse).computed == run(same, Keep(schedule)).computed


def test_a_segment_without_stored_kv_takes_no_share(prompt):
    pieces = (Piece('bare', [5, 6]), *prompt.pieces)
    bare, schedule = Prompt(prompt.head, pieces, prompt.question), Schedule((1.0, 0.3, 0.3, 0.1))
    reuse = Watched(schedule, segments=True)
    run(bare, reuse)
    for count, (_, mask, _) in zip(
        [share(r, 9) for r in schedule.ratios[1:]], reuse.seen, strict=True
    ):
        assert mask[always_computed(bare)].all()
        assert len({int(i) for i in bare.owner[mask] if i >= 1}) == count


def _alike(prompt):
    """Segments of two tokens each, so that as many segments are as many tokens."""
    return [Piece(piece.segment, piece.ids[:2], piece.unit) for piece in prompt.pieces]
