"""The hybrid network: transformers' Qwen3.5 text model with seeded random weights.

Knows scales and decay rates with which the output depends on all tokens so far. Does not know
sessions or states.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from benchmarks.hybrid.config import HybridConfig

# A head decays by a factor e in about 0.8 / A tokens: from one token to a thousand.
SLOWEST, FASTEST = 1e-3, 1.0


def random_hybrid(c: HybridConfig, seed: int = 0, device: str = 'cpu') -> Qwen3_5ForCausalLM:
    """Return a model, a function of sizes and seed alone; its head is not its token table."""
    with torch.random.fork_rng(devices=[]):
        model = Qwen3_5ForCausalLM(_text_config(c))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        _init(name, parameter.requires_grad_(False), generator)
    return model.eval().to(device, getattr(torch, c.dtype))


def _text_config(c: HybridConfig) -> Qwen3_5TextConfig:
    """Return our sizes under the names of transformers."""
    return Qwen3_5TextConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.width,
        intermediate_size=c.mlp,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        full_attention_interval=c.full_every,
        linear_conv_kernel_dim=c.kernel,
        linear_key_head_dim=c.linear_dim,
        linear_value_head_dim=c.linear_dim,
        linear_num_key_heads=c.linear_heads,
        linear_num_value_heads=c.linear_heads,
        max_position_embeddings=c.capacity,
        rope_parameters=dict(rope_type='default', rope_theta=c.rope_theta),
        rms_norm_eps=c.eps,
        attn_implementation='sdpa',
    )


def _init(name: str, parameter: nn.Parameter, generator: torch.Generator) -> None:
    """Draw matrices by their fan in and decay rates log-uniform.

    Norms and time steps stay as built.
    """
    if name.endswith('A_log'):
        low, high = torch.tensor([SLOWEST, FASTEST]).log().tolist()
        parameter.uniform_(low, high, generator=generator)
    elif parameter.dim() > 1:  # [out, in...]
        parameter.normal_(0, parameter[0].numel() ** -0.5, generator=generator)
