"""A prefill over units that keep a part of their tokens equals one in which the others are masked.

The reference computes every layer with attention written out, over all tokens at their positions,
and hides what a layer does not have. Pieces that are computed again are whole.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cases import CONFIG, B, KvOfUnits, make_planner, make_prefill, make_prompt

from embodied_kv.memory.keep import Keep
from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.reuse import FullRecompute, Reuse
from embodied_kv.memory.rotate import Rotation, frequencies
from embodied_kv.memory.schedule import Schedule

MOVE = Rotation(frequencies(B.head_dim, B.rope_theta))


class Chosen(Keep):
    """Whose masks are kept."""

    def first(self, prompt):
        mask = super().first(prompt)
        self.masks.append(mask.clone())
        return mask

    def after(self, state, computed):
        mask = super().after(state, computed)
        self.masks.append(mask.clone())
        return mask


class Masked:
    """Attention of some tokens over all that is not hidden and not later."""

    def __init__(self, length):
        shape = B.layers, B.kv_heads, length, B.head_dim
        self.k, self.v, self.there = torch.zeros(shape), torch.zeros(shape), torch.ones(length)

    def attend(self, layer, q, k, v):
        for own, new in ((self.k, k), (self.v, v)):
            own[layer][:, self.at] = new[0].transpose(0, 1)
        group = q.shape[2] // B.kv_heads
        keys, values = (part[layer].repeat_interleave(group, 0) for part in (self.k, self.v))
        scores = torch.einsum('thd,hnd->htn', q[0], keys) * B.head_dim**-0.5
        later = torch.arange(keys.shape[1]) > self.at[:, None]
        scores = scores.masked_fill(later | ~self.there, float('-inf'))
        return torch.einsum('htn,hnd->thd', scores.softmax(-1), values)[None]


@torch.inference_mode()
def reference(model, prompt, masks, load):
    """Hidden state of the last token."""
    positions, view = torch.arange(prompt.length), Masked(prompt.length)
    hidden = model.embed(prompt.ids[None])
    for layer, mask in enumerate(masks):
        stays = mask[positions]
        positions, hidden = positions[stays], hidden[:, stays]
        view.there = torch.ones(prompt.length, dtype=torch.bool)
        for start, piece in zip(prompt.starts, prompt.pieces, strict=True):
            if not mask[start : start + len(piece.ids)].all():
                k, v = load(piece.unit, layer)
                end = start + piece.kept
                by = start - piece.offset
                view.k[layer][:, start:end] = MOVE(k[:, piece.stored], by)
                view.v[layer][:, start:end] = v[:, piece.stored]
                view.there[end : start + len(piece.ids)] = False
        view.at = positions
        hidden = model.layer(layer, hidden, view, model.rope(positions[None]))
    return hidden[:, -1:]


def thin(prompt, units, every):
    """Each piece keeps its tokens number 0, every, 2 every, ... -> prompt, and what loads it."""
    kept, pieces, stored = {}, [], {}
    for piece in prompt.pieces:
        own = range(piece.offset, piece.offset + len(piece.ids), every)
        at = stored.get(piece.unit, 0)
        kept.setdefault(piece.unit, []).extend(own)
        stored[piece.unit] = at + len(own)
        where = slice(at, at + len(own))
        pieces.append(Piece(piece.segment, piece.ids, piece.unit, piece.offset, where))

    def load(unit, layer):
        return tuple(part[:, kept[unit]] for part in units(unit, layer))

    return Prompt(prompt.head, tuple(pieces), prompt.question), load


@pytest.mark.parametrize('method', ['keep', 'full_reuse'])
@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 99),
    segments=st.integers(1, 7),
    together=st.booleans(),
    every=st.integers(1, 4),
)
def test_a_prefill_equals_the_masked_one(method, seed, segments, together, every):
    model, whole = make_planner(), make_prompt(3, segments, together, seed)
    prompt, load = thin(whole, KvOfUnits(model, whole), every)
    if method == 'keep':
        reuse = Chosen(
            Schedule((1.0, *torch.linspace(0.6, 0.2, B.layers - 1).tolist())), restart=0.5
        )
        object.__setattr__(reuse, 'masks', [])
    else:
        reuse = Reuse()
    prefill = make_prefill(model, load)
    hidden, work = prefill.run(prompt, reuse)
    masks = reuse.masks if method == 'keep' else [reuse.first(prompt)] * B.layers
    torch.testing.assert_close(hidden, reference(model, prompt, masks, load), rtol=1e-3, atol=1e-4)
    dropped = sum(len(piece.ids) - piece.kept for piece in prompt.pieces)
    assert work.lacks[-1] <= dropped and work.lacks == sorted(work.lacks)
    assert all(
        computed + loaded + lacks == prompt.length
        for computed, loaded, lacks in zip(work.computed, work.loaded, work.lacks, strict=True)
    )
    assert int(prefill._arena.lengths[0, 0]) == prompt.length - min(work.lacks)


@pytest.mark.parametrize('together', [True, False])
def test_what_keeps_all_is_what_it_was_bit_for_bit(together):
    model, whole = make_planner(), make_prompt(3, 5, together)
    units = KvOfUnits(model, whole)
    prompt, load = thin(whole, units, 1)
    for reuse in (
        Reuse(),
        FullRecompute(),
        Keep(Schedule((1.0, *torch.linspace(0.6, 0.2, B.layers - 1).tolist()))),
    ):
        runs = [make_prefill(model, which) for which in (units, load)]
        hidden = [run.run(p, reuse)[0] for run, p in zip(runs, (whole, prompt), strict=True)]
        assert torch.equal(*hidden)
        assert torch.equal(*(run._arena.row(0)[0] for run in runs))
    assert CONFIG.max_tokens >= prompt.length
