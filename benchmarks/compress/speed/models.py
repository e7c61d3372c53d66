"""Models of which only the language part is measured, whole or a slice of it.

A slice of a model has a share of its layers and of its vocabulary, in their full dimensions. A
decode step consists of nothing else, so weights and KV have the proportion of the whole model:
ratios are the whole model's, times are the share's. The vision tower and the expert are minimal,
as the paper times the language model alone.
"""

from __future__ import annotations

from dataclasses import replace

from embodied_kv.config import (
    PI05,
    PI05_SMALL,
    BackboneConfig,
    ExpertConfig,
    ModelConfig,
    VisionConfig,
)

IMAGE, TEXT = 1024, 48  # tokens of a view and of the prompt
SIZE = 64  # pixels, of a view
MISTRAL_7B = BackboneConfig(
    width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, mlp=14336, vocab_size=32000
)


def _slice(b: BackboneConfig, share: int) -> BackboneConfig:
    return replace(b, layers=b.layers // share, vocab_size=b.vocab_size // share)


BACKBONES = {
    'pi05_small': PI05_SMALL.backbone,
    'pi05_small, 8 KV heads': replace(PI05_SMALL.backbone, kv_heads=8),
    'pi05, a sixth': _slice(PI05.backbone, 6),
    'Mistral 7B, a sixteenth': _slice(MISTRAL_7B, 16),
}
SMALL, SMALL_8, PI05_SLICE, MISTRAL_SLICE = BACKBONES


def model(
    name: str, backbone: BackboneConfig | None = None, dtype: str = 'bfloat16'
) -> ModelConfig:
    """Return a model of one view around the backbone of that name, or around the given one."""
    return ModelConfig(
        name=name,
        vision=VisionConfig(image_size=SIZE, patch_size=2, width=16, layers=1, heads=1, mlp=16),
        backbone=backbone or BACKBONES[name],
        expert=ExpertConfig(width=32, mlp=32),
        views=('view',),
        max_text=TEXT,
        chunk_size=1,
        state_dim=7,
        action_dim=7,
        dtype=dtype,
    )
