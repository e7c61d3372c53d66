"""The names of pi0.5's and pi0's weights in openpi and LeRobot, and what they form here."""

from __future__ import annotations

import re

from embodied_kv.config import ModelConfig

EMBEDDING = 'backbone.embed.weight'
UNUSED = 'paligemma_with_expert.gemma_expert.lm_head.weight'

PALIGEMMA = 'paligemma_with_expert.paligemma.'
EXPERT = 'paligemma_with_expert.gemma_expert.model.'
PREFIXES = {
    'vision.tower.': PALIGEMMA + 'model.vision_tower.',
    'vision.projector.': PALIGEMMA + 'model.multi_modal_projector.linear.',
    'backbone.': PALIGEMMA + 'model.language_model.',
    'expert.layers.': EXPERT + 'layers.',
    'expert.norm.': EXPERT + 'norm.',
    'expert.action_in.': 'action_in_proj.',
    'expert.action_out.': 'action_out_proj.',
    'expert.time_in.': 'time_mlp_in.',
    'expert.time_out.': 'time_mlp_out.',
    'state_in.': 'state_proj.',
}
# Our name: the names of their matrices, whose rows are concatenated.
LAYER = {
    'qkv': ('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj'),
    'o': ('self_attn.o_proj',),
    'gate_up': ('mlp.gate_proj', 'mlp.up_proj'),
    'down': ('mlp.down_proj',),
}
NORMS = {'attn_norm': 'input_layernorm', 'mlp_norm': 'post_attention_layernorm'}
TIED = {PALIGEMMA + 'lm_head.weight', PALIGEMMA + 'model.language_model.embed_tokens.weight'}


def canonical(name: str) -> str | None:
    """Return the canonical form of a name, or None for an unused weight.

    Variants: a leading `model.`, the older `action_time_mlp_*`, SigLIP with or without an inner
    `vision_model.`, and the tied embedding, stored as lm_head, as embed_tokens, or as both.
    """
    name = name.removeprefix('model.')
    if name == UNUSED:
        return None
    if name in TIED:
        return EMBEDDING
    name = re.sub(r'^action_time_mlp_', 'time_mlp_', name)
    return name.replace('.vision_tower.vision_model.', '.vision_tower.')


def sources(name: str, config: ModelConfig) -> tuple[str, ...]:
    """Return the canonical names whose concatenated rows form our parameter `name`."""
    if name == EMBEDDING:
        return (EMBEDDING,)
    ours = next(prefix for prefix in PREFIXES if name.startswith(prefix))
    theirs, rest = PREFIXES[ours], name.removeprefix(ours)
    dense = 'dense.' if ours.startswith('expert.') and config.expert.time == 'norms' else ''
    if ours == 'expert.norm.':
        return (theirs + dense + rest,)
    layer = re.fullmatch(r'((?:layers\.)?\d+\.)(\w+)\.(weight|bias)', rest)
    if layer is None:
        return (theirs + rest,)
    index, module, kind = layer.groups()
    if module in NORMS:
        return (f'{theirs}{index}{NORMS[module]}.{dense}{kind}',)
    return tuple(f'{theirs}{index}{part}.{kind}' for part in LAYER[module])


def row_counts(name: str, rows: int, config: ModelConfig) -> list[int]:
    """Return how many rows of our parameter come from each of its sources."""
    if '.qkv.' in name:
        b = config.backbone
        return [heads * b.head_dim for heads in (b.heads, b.kv_heads, b.kv_heads)]
    if '.gate_up.' in name:
        return [rows // 2, rows // 2]
    return [rows]
