"""The bidirectional prefix equals transformers' Gemma with random weights."""

from dataclasses import replace

import pytest
import torch
from transformers import GemmaConfig, GemmaModel

from embodied_kv.config import TINY, BackboneConfig
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.views import PrefixWrite
from embodied_kv.model.backbone import Backbone, arange_positions
from embodied_kv.model.keys import PREFIXES, row_counts, sources
from embodied_kv.model.random import init_random

TOKENS = 11


def gemma_state(model, config):
    """Return our parameters under the names of transformers' GemmaModel."""
    state = {'embed_tokens.weight': model.embed.weight}
    for name, parameter in model.state_dict(prefix='backbone.').items():
        if name != 'backbone.embed.weight':
            theirs = sources(name, TINY)
            pieces = parameter.split(
                row_counts(name, len(parameter), replace(TINY, backbone=config))
            )
            for source, piece in zip(theirs, pieces, strict=True):
                state[source.removeprefix(PREFIXES['backbone.'])] = piece
    return state


@pytest.mark.parametrize('kv_heads', [1, 2, 4])
@torch.inference_mode()
def test_prefix_equals_gemma_under_a_full_mask(kv_heads):
    c = BackboneConfig(
        width=48, layers=3, heads=4, kv_heads=kv_heads, head_dim=16, mlp=80, vocab_size=64
    )
    ours = Backbone(c).eval()
    holder = torch.nn.Module()
    holder.backbone = ours
    init_random(holder, seed=5)
    theirs = GemmaModel(
        GemmaConfig(
            vocab_size=c.vocab_size,
            hidden_size=c.width,
            intermediate_size=c.mlp,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            num_key_value_heads=c.kv_heads,
            head_dim=c.head_dim,
            hidden_act='gelu_pytorch_tanh',
            attn_implementation='eager',
        )
    ).eval()
    theirs.load_state_dict(gemma_state(ours, c))
    ids = torch.arange(2 * TOKENS).view(2, TOKENS)
    embeddings = ours.embed_tokens(ids)
    # Some versions of transformers scale embeddings again, so layer 0 receives ours unchanged.
    theirs.layers[0].register_forward_pre_hook(lambda _, given: (embeddings, *given[1:]))
    positions = arange_positions(2, TOKENS, torch.device('cpu'))
    hidden = theirs(
        inputs_embeds=embeddings,
        attention_mask=torch.zeros(2, 1, TOKENS, TOKENS),
        position_ids=positions,
        use_cache=False,
    ).last_hidden_state
    arena = Arena(
        layers=c.layers, rows=2, kv_heads=kv_heads, max_tokens=TOKENS, head_dim=c.head_dim,
        dtype=torch.float32,
    )  # fmt: skip
    got = ours(embeddings, positions, PrefixWrite(arena, 2, TOKENS).bind([0, 1], [TOKENS, TOKENS]))
    torch.testing.assert_close(got, hidden, atol=1e-4, rtol=0)


def test_token_embeddings_are_scaled_by_the_root_of_the_width():
    c = BackboneConfig(width=64, layers=1, heads=1, kv_heads=1, head_dim=8, mlp=8, vocab_size=9)
    backbone = Backbone(c)
    torch.nn.init.normal_(backbone.embed.weight)
    torch.testing.assert_close(backbone.embed_tokens(torch.arange(9)), backbone.embed.weight * 8)
