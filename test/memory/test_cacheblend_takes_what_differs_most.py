"""CacheBlend recomputes its share of the tokens: those that differ most from stored KV."""

import pytest
import torch
from memory_cases import CONFIG, B, KvOfUnits, make_arena, make_planner, make_prompt

from benchmarks.memory.reuse_variants import (
    CacheBlend,
    ComparingPrefill,
    Epic,
    Schedule,
    VariedKeep,
    named_schedule,
)
from embodied_kv.memory.importance import share
from embodied_kv.memory.keep import Keep
from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.reuse import always_computed
from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.layers import wavelengths

LAYERS = CONFIG.backbone.layers


class Watched(CacheBlend):
    """Records what was computed and chosen, and the deviation of each token of the prompt."""

    seen = ()

    def after(self, state, computed):
        off = torch.full((state.prompt.length,), -torch.inf)
        off[state.positions] = state.deviation()
        mask = super().after(state, computed)
        object.__setattr__(self, 'seen', (*self.seen, (computed, mask, off)))
        return mask


def run(prompt, reuse):
    model, move = make_planner(), Rotation(wavelengths(B.head_dim, B.rope_theta)[None])
    units = KvOfUnits(model, prompt)
    return ComparingPrefill(model, make_arena(), 0, units, move).run(prompt, reuse)[1]


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
    assert run(same, reuse).computed == run(same, VariedKeep(schedule=schedule)).computed


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
    """Return segments of two tokens each, so that equal numbers of segments are equal tokens."""
    return [Piece(piece.segment, piece.ids[:2], piece.unit) for piece in prompt.pieces]


@pytest.mark.parametrize('reuse', [CacheBlend(Schedule((1.0,) * LAYERS)), Epic(tokens=99)])
def test_all_recomputed_computes_every_token(prompt, reuse):
    work = run(prompt, reuse)
    assert work.computed == [prompt.length] * LAYERS and not any(work.loaded)


def test_epic_takes_the_first_tokens_of_each(prompt):
    work = run(prompt, Epic(tokens=2))
    assert work.computed == [int(always_computed(prompt).sum()) + 16] * LAYERS


@pytest.mark.parametrize('segments', [2, 5, 8])
def test_an_unvaried_keep_chooses_what_the_node_does(segments):
    prompt, chosen = make_prompt(segments=segments), []
    even = Schedule((1.0, *[0.4] * (LAYERS - 1)))
    for reuse in (Keep(0.4, hops=3), VariedKeep(hops=3, schedule=even)):
        chosen.append(run(prompt, reuse))
    assert chosen[0] == chosen[1] and len(chosen[0].chosen) == LAYERS - 1
