"""Recomputed KV equals that of a full prefill, and loaded KV equals the stored KV."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cases import CONFIG, KvOfUnits, make_planner, make_prefill, make_prompt

from embodied_kv.memory.importance import share
from embodied_kv.memory.keep import Keep, keep_ratio, segment_attention
from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.reuse import FullRecompute, PrefixCaching, Reuse, always_computed

LAYERS = CONFIG.backbone.layers
CLOSE = dict(atol=2e-5, rtol=0)


def run(prompt, reuse, units=None):
    model = make_planner()
    return make_prefill(model, units or KvOfUnits(model, prompt)).run(prompt, reuse)


EVERYTHING = [FullRecompute(), PrefixCaching(), Keep(1.0)]


@pytest.mark.parametrize('reuse', EVERYTHING, ids=lambda reuse: reuse.name)
def test_all_recomputed_equals_full(reuse):
    prompt = make_prompt()
    wanted, _ = run(prompt, FullRecompute())
    hidden, work = run(prompt, reuse)
    torch.testing.assert_close(hidden, wanted, **CLOSE)
    assert work.computed == [prompt.length] * LAYERS and not any(work.loaded)


def test_one_segment_alone_is_reused_exactly():
    """Without preceding tokens a segment's own KV equals that of a full prefill."""
    prompt = make_prompt(head=0, segments=1)
    wanted, _ = run(prompt, FullRecompute())
    hidden, work = run(prompt, Reuse())
    torch.testing.assert_close(hidden, wanted, **CLOSE)
    assert work.computed == [len(prompt.question)] * LAYERS


def test_a_group_that_was_computed_together_is_reused_exactly():
    prompt = make_prompt(head=0, segments=4, together=True)
    wanted, _ = run(prompt, FullRecompute())
    hidden, work = run(prompt, Reuse())
    torch.testing.assert_close(hidden, wanted, **CLOSE)
    assert sum(work.loaded) == LAYERS * prompt.question_at


def test_segments_that_never_met_are_not():
    prompt = make_prompt(segments=5)
    wanted, _ = run(prompt, FullRecompute())
    hidden, _ = run(prompt, Reuse())
    assert (hidden - wanted).abs().max() > 1e-3


def test_without_moving_the_keys_it_is_worse():
    prompt = make_prompt(head=0, segments=2)
    model = make_planner()
    units = KvOfUnits(model, prompt)
    wanted, _ = run(prompt, FullRecompute())
    moved, _ = make_prefill(model, units).run(prompt, Reuse())
    left, _ = make_prefill(model, units, move=lambda k, by, layer: k).run(prompt, Reuse())
    assert (left - wanted).abs().mean() > (moved - wanted).abs().mean()


@settings(deadline=None, max_examples=20)
@given(
    ratio=st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]),
    segments=st.integers(1, 8),
    hops=st.integers(0, 4),
)
def test_keep_computes_its_share_in_each_layer_and_nothing_twice(ratio, segments, hops):
    prompt = make_prompt(segments=segments)
    seen = []

    class Watched(Keep):
        def after(self, state, computed):
            mask = super().after(state, computed)
            seen.append((computed, mask))
            return mask

    _, work = run(prompt, Watched(ratio, hops))
    assert work.computed[0] == prompt.length
    assert len(seen) == LAYERS - 1
    for computed, mask in seen:
        assert not (mask & ~computed).any()  # dropped tokens stay dropped
        kept = {int(i) for i in prompt.owner[mask] if i >= 0}
        assert len(kept) == share(ratio, segments)
        assert mask[always_computed(prompt)].all()


def test_mean_share_over_the_layers_is_the_recompute_ratio():
    assert keep_ratio((1 + 3 * 0.16) / 4, 4) == 0.16 and keep_ratio(1.0, 1) == 0
    assert (1 + 3 * keep_ratio(0.4, 4)) / 4 == pytest.approx(0.4)


@pytest.mark.parametrize('ratio', [0.24, 1.01, float('nan')])
def test_recompute_ratio_out_of_reach_is_refused(ratio):
    with pytest.raises(ValueError, match=r'recompute_ratio must be in \[0\.25, 1\] with 4 layers'):
        keep_ratio(ratio, 4)


def test_prefix_caching_computes_what_lies_behind_a_change():
    model, first = make_planner(), make_prompt(segments=4)
    prefill, reuse = make_prefill(model, KvOfUnits(model, first)), PrefixCaching()
    _, cold = prefill.run(first, reuse)
    assert cold.computed == [first.length] * LAYERS
    wanted, again = prefill.run(first, reuse)
    assert again.computed == [1] * LAYERS
    pieces = list(first.pieces)
    pieces[2] = Piece('other', [9, 9, 9], '')
    changed = Prompt(first.head, tuple(pieces), first.question)
    hidden, work = prefill.run(changed, reuse)
    assert work.computed == [changed.length - changed.starts[2]] * LAYERS
    torch.testing.assert_close(hidden, run(changed, FullRecompute())[0], **CLOSE)
    assert (hidden - wanted).abs().max() > 1e-3


def test_segments_without_stored_kv_are_computed():
    prompt = make_prompt(segments=4)
    bare = Prompt(prompt.head, (Piece('new', [3, 4, 5]), *prompt.pieces[1:]), prompt.question)
    _, work = run(bare, Reuse(), KvOfUnits(make_planner(), prompt))
    assert work.computed == [len(bare.head) + 3 + len(bare.question)] * LAYERS


def test_a_prompt_longer_than_a_row_is_refused():
    prompt = make_prompt(segments=60)
    with pytest.raises(ValueError, match='retrieve less memory'):
        run(prompt, FullRecompute())


def test_segment_attention_is_a_mean_over_heads_and_tokens():
    prompt = make_prompt(segments=3)
    states = []

    class Looking(FullRecompute):
        def after(self, state, computed):
            states.append((segment_attention(state, 0), state))
            return computed

    run(prompt, Looking())
    (question, between), state = states[0]
    keys = state.keys.double().repeat_interleave(2, 0)  # [heads, length, dim]
    scores = torch.einsum('thd,hsd->hts', state.queries.double(), keys) * keys.shape[-1] ** -0.5
    n = prompt.length
    scores.masked_fill_(torch.ones(n, n).triu(1).bool(), float('-inf'))
    attention = scores.softmax(-1).mean(0)
    spans = [slice(s, s + len(p.ids)) for s, p in zip(prompt.starts, prompt.pieces, strict=True)]
    wanted = [[attention[a, b].mean() for b in spans] for a in spans]
    torch.testing.assert_close(between.double(), torch.tensor(wanted), atol=1e-6, rtol=0)
    asked = torch.tensor([attention[prompt.question_at :, b].mean() for b in spans])
    torch.testing.assert_close(question.double(), asked, atol=1e-6, rtol=0)


@pytest.mark.parametrize('scoring_tokens', [1, 2, 3, 100])
def test_scoring_tokens_approximate_the_attention_of_a_segment(scoring_tokens):
    """Scoring tokens are evenly spread and include the last one; all keys are attended to."""
    prompt = make_prompt(segments=3)
    states = []

    class Looking(FullRecompute):
        def after(self, state, computed):
            states.append(
                (segment_attention(state, scoring_tokens), segment_attention(state, 0), state)
            )
            return computed

    run(prompt, Looking())
    (question, between), (wanted, all_between), state = states[0]
    assert question.equal(wanted)
    rows = []
    for start, piece in zip(prompt.starts, prompt.pieces, strict=True):
        size = len(piece.ids)
        n = min(scoring_tokens, size)
        rows.append([start + i for i in range(size) if (i + 1) * n // size > i * n // size])
        assert len(rows[-1]) == n and rows[-1][-1] == start + size - 1
    if scoring_tokens == 100:
        assert between.equal(all_between)
    wanted_rows = [torch.stack([_row(state, prompt, at) for at in row]).mean(0) for row in rows]
    torch.testing.assert_close(between, torch.stack(wanted_rows), atol=1e-6, rtol=0)


def _row(state, prompt, at):
    """Return one token's attention to each segment, [s]: mean over heads and segment tokens."""
    keys = state.keys.repeat_interleave(2, 0)[:, : at + 1]
    scores = torch.einsum('hd,hsd->hs', state.queries[at], keys) * keys.shape[-1] ** -0.5
    weights = torch.zeros(prompt.length)
    weights[: at + 1] = scores.softmax(-1).mean(0)
    ends = [s + len(p.ids) for s, p in zip(prompt.starts, prompt.pieces, strict=True)]
    return torch.stack([weights[a:b].mean() for a, b in zip(prompt.starts, ends, strict=True)])
