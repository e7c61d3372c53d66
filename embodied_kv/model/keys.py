"""The names of weights in openpi and LeRobot, and the parameters that they form here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from embodied_kv.config import ModelConfig
from embodied_kv.model.planner import PlannerConfig

Config = ModelConfig | PlannerConfig
EMBEDDING = 'backbone.embed.weight'
UNUSED = 'paligemma_with_expert.gemma_expert.lm_head.weight'

PALIGEMMA = 'paligemma_with_expert.paligemma.'
EXPERT = 'paligemma_with_expert.gemma_expert.model.'
SMOLVLM = 'vlm_with_expert.vlm.model.'
HEADS = {
    'expert.action_in.': 'action_in_proj.',
    'expert.action_out.': 'action_out_proj.',
    'expert.time_in.': 'time_mlp_in.',
    'expert.time_out.': 'time_mlp_out.',
    'state_in.': 'state_proj.',
}
PREFIXES = {
    'vision.tower.': PALIGEMMA + 'model.vision_tower.',
    'vision.projector.': PALIGEMMA + 'model.multi_modal_projector.linear.',
    'backbone.': PALIGEMMA + 'model.language_model.',
    'expert.layers.': EXPERT + 'layers.',
    'expert.norm.': EXPERT + 'norm.',
    **HEADS,
}
SMOLVLA_PREFIXES = {
    'vision.tower.': SMOLVLM + 'vision_model.',
    'vision.projector.': SMOLVLM + 'connector.modality_projection.proj.',
    'backbone.embed.': SMOLVLM + 'text_model.embed_tokens.',
    'backbone.head.': 'vlm_with_expert.vlm.lm_head.',
    'backbone.': SMOLVLM + 'text_model.',
    'expert.layers.': 'vlm_with_expert.lm_expert.layers.',
    'expert.norm.': 'vlm_with_expert.lm_expert.norm.',
    **HEADS,
}
# Our name: the names of their matrices, whose rows are concatenated.
LAYER = {
    'q': ('self_attn.q_proj',),
    'k': ('self_attn.k_proj',),
    'v': ('self_attn.v_proj',),
    'qkv': ('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj'),
    'o': ('self_attn.o_proj',),
    'gate_up': ('mlp.gate_proj', 'mlp.up_proj'),
    'down': ('mlp.down_proj',),
}
NORMS = {'attn_norm': 'input_layernorm', 'mlp_norm': 'post_attention_layernorm'}
TIED = {PALIGEMMA + 'lm_head.weight', PALIGEMMA + 'model.language_model.embed_tokens.weight'}


@dataclass(frozen=True)
class Naming:
    """How files name the parameters.

    canonical: the canonical form of a name in a file; None for an unused weight. sources: of the
    name of our parameter, the canonical names whose concatenated rows form it.
    """

    canonical: Callable[[str], str | None]
    sources: Callable[[str], tuple[str, ...]]


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


def sources(name: str, config: Config) -> tuple[str, ...]:
    """Return the canonical names whose concatenated rows form our parameter `name`."""
    is_gemma = config.backbone.kind == 'gemma'
    if is_gemma and name == EMBEDDING:
        return (EMBEDDING,)
    prefixes = PREFIXES if is_gemma else SMOLVLA_PREFIXES
    ours = next(prefix for prefix in prefixes if name.startswith(prefix))
    theirs, rest = prefixes[ours], name.removeprefix(ours)
    is_adaptive = isinstance(config, ModelConfig) and config.expert.time == 'norms'
    dense = 'dense.' if ours.startswith('expert.') and is_adaptive else ''
    if ours == 'expert.norm.':
        return (theirs + dense + rest,)
    layer = re.fullmatch(r'((?:layers\.)?\d+\.)(\w+)\.(weight|bias)', rest)
    if layer is None:
        return (theirs + rest,)
    index, module, kind = layer.groups()
    if module in NORMS:
        return (f'{theirs}{index}{NORMS[module]}.{dense}{kind}',)
    return tuple(f'{theirs}{index}{part}.{kind}' for part in LAYER[module])


def row_counts(name: str, rows: int, config: Config) -> list[int]:
    """Return how many rows of our parameter come from each of its sources."""
    if '.qkv.' in name:
        b = config.backbone
        return [heads * b.head_dim for heads in (b.heads, b.kv_heads, b.kv_heads)]
    if '.gate_up.' in name:
        return [rows // 2, rows // 2]
    return [rows]
