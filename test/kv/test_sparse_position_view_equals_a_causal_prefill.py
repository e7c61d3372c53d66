"""Tokens computed in pieces, by layers and positions, equal one causal prefill."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.config import BackboneConfig
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import SparsePositionView
from embodied_kv.model.planner import Planner, PlannerConfig

CONFIG = PlannerConfig('test', BackboneConfig(32, 3, 4, 2, 8, 48, 50), max_tokens=24)
TOKENS = 14


def planner():
    torch.manual_seed(0)
    model = Planner(CONFIG).requires_grad_(False)
    for p in model.parameters():
        p.normal_(0, 0.2)
    return model


def arena():
    b = CONFIG.backbone
    size = dict(layers=b.layers, kv_heads=b.kv_heads, head_dim=b.head_dim)
    arena = Arena(rows=2, max_tokens=CONFIG.max_tokens, dtype=torch.float32, **size)
    arena.set_length(1, TOKENS)
    return arena


def whole(model, ids):
    """Compute all positions at once; return the arena and the hidden states."""
    kept = arena()
    positions = torch.arange(TOKENS)
    hidden = model(ids[None], positions[None], SparsePositionView(kept, 1).bind(positions))
    return kept, hidden[0]


def reference(model, ids):
    """Return the hidden states in float64, by a dense causal mask."""
    model = model.double()
    positions = torch.arange(TOKENS)

    class Dense:
        def attend(self, layer, q, k, v):
            k, v = (part.repeat_interleave(2, 2) for part in (k, v))
            score = torch.einsum('bthd,bshd->bhts', q, k) * 8**-0.5
            score.masked_fill_(torch.ones(TOKENS, TOKENS).triu(1).bool(), float('-inf'))
            return torch.einsum('bhts,bshd->bthd', score.softmax(-1), v)

    return model(ids[None], positions[None], Dense())[0]


@torch.inference_mode()
def test_all_positions_equal_a_dense_causal_mask():
    model, ids = (
        planner(),
        torch.randint(50, (TOKENS,), generator=torch.Generator().manual_seed(1)),
    )
    _, hidden = whole(model, ids)
    torch.testing.assert_close(hidden.double(), reference(model, ids), atol=1e-5, rtol=0)


@settings(deadline=None, max_examples=25)
@given(computed=st.sets(st.integers(0, TOKENS - 2)), seed=st.integers(0, 99))
def test_loaded_and_computed_tokens_equal_all_computed(computed, seed):
    """K and V of the other positions come from the whole prefill; the last token is computed."""
    with torch.inference_mode():
        model = planner()
        ids = torch.randint(50, (TOKENS,), generator=torch.Generator().manual_seed(seed))
        full, hidden = whole(model, ids)
        positions = torch.tensor(sorted({*computed, TOKENS - 1}))
        kept = arena()
        view = SparsePositionView(kept, 1).bind(positions)
        rope, part = model.rope(positions[None]), model.embed(ids[positions][None])
        for layer in range(CONFIG.backbone.layers):
            for position in sorted(set(range(TOKENS)) - set(positions.tolist())):
                one = slice(position, position + 1)
                view.put(layer, position, *(kv[1, :, one] for kv in full.layers[layer]))
            part = model.layer(layer, part, view, rope)
        torch.testing.assert_close(
            model.backbone.norm(part)[0], hidden[positions], atol=1e-5, rtol=0
        )
        torch.testing.assert_close(kept.k[:, 1, :, :TOKENS], full.k[:, 1, :, :TOKENS])
        assert torch.equal(view.keys(1), kept.k[1, 1, :, :TOKENS])
