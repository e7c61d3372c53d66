"""LeRobot's pi0.5 in any dimensions."""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.common.command import BenchmarkError
from benchmarks.peers.lerobot import STEPS
from benchmarks.peers.ways import Asked
from embodied_kv.config import ModelConfig

MODULE, GEMMA = 'lerobot.policies.pi05.modeling_pi05', 'lerobot.policies.pi_gemma'
# The classes of which the model consists, in its module.
PARTS = 'PaliGemmaForConditionalGenerationWithPiGemma', 'PiGemmaForCausalLM'


def aims(dtype: str) -> dict[tuple[str, str], float]:
    """Return how many times as fast as LeRobot's the compiled engine should be."""
    return {
        ('denoise', 'theirs_eager'): 2.5,
        ('denoise', 'theirs_compiled'): 1.3,
        ('frame', 'theirs_eager'): 1.3,
        ('frame', 'theirs_compiled'): 1.1,
    }


class Peer:
    """A PI05Pytorch in float32, and the calls of its sample_actions.

    module: MODULE. Raises BenchmarkError for a config that LeRobot's pi0.5 does not support.
    """

    def __init__(self, module: ModuleType, c: ModelConfig, device: str) -> None:
        accept_cache_position(import_module(GEMMA))
        self._module, self.model = module, build(module, c, device)
        self.compile_mode: str = self.model.config.compile_mode

    def round(self, dtype: str) -> None:
        """Convert the weights in place, as LeRobot does it."""
        self.model.paligemma_with_expert.to_bfloat16_for_selected_params(dtype)

    def inputs(self, asked: Asked) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
        """Return images, whether they are there, ids, and whether they are valid."""
        there = torch.ones(1, dtype=torch.bool, device=asked.ids.device)
        images = [*asked.images]
        return images, [there] * len(images), asked.ids, there.expand_as(asked.ids)

    def prefix(
        self, images: list[Tensor], seen: list[Tensor], ids: Tensor, valid: Tensor
    ) -> tuple[Tensor, object]:
        """Return the prefix: which tokens are valid, and their cache."""
        module, both = self._module, self.model.paligemma_with_expert
        embedded, valid, blocks = self.model.embed_prefix(images, seen, ids, valid)
        mask = module.prepare_attention_masks_4d(module.make_att_2d_masks(valid, blocks))
        both.paligemma.model.language_model.config._attn_implementation = 'eager'
        _, cache = both.forward(
            attention_mask=mask,
            position_ids=torch.cumsum(valid, dim=1) - 1,
            inputs_embeds=[embedded, None],
            use_cache=True,
        )
        return valid, cache

    def denoise(self, valid: Tensor, cache: object, noise: Tensor) -> Tensor:
        """Return the chunk that is denoised from a prefix."""
        step = partial(self.model.denoise_step, valid, cache)
        return self._module.euler_integrate(step, noise, STEPS)

    def sample(self, noise: Tensor, *inputs: Any) -> Tensor:
        """Return the chunk of a frame."""
        return self.model.sample_actions(*inputs, noise=noise)


def accept_cache_position(module: ModuleType) -> None:
    """Let the module call `create_causal_mask` of a transformers that is newer than its own.

    Its argument `cache_position` has no effect, because its masks are complete.
    """
    made = module.create_causal_mask
    if 'cache_position' not in inspect.signature(made).parameters:

        def create_causal_mask(cache_position: Tensor | None = None, **arguments: Any) -> Any:
            return made(**arguments)

        module.create_causal_mask = create_causal_mask


def build(module: ModuleType, c: ModelConfig, device: str) -> nn.Module:
    """Return a PI05Pytorch in float32 with the dimensions of `c` and its own random weights.

    Its code contains PaliGemma's dimensions as numbers; they are replaced after they are set.
    Raises BenchmarkError for a config that it does not support.
    """
    if c.vision.merge != 1:
        raise BenchmarkError(f"{c.name} merges patches of images, which LeRobot's pi0.5 cannot")
    widths = dict(gemma_2b=c.backbone, gemma_300m=c.expert)
    paligemma, gemma = (getattr(module, name) for name in PARTS)

    def dimensions(variant: str) -> Any:
        part, b = widths[variant], c.backbone
        return module.GemmaConfig(part.width, b.layers, part.mlp, b.heads, b.kv_heads, b.head_dim)

    def with_backbone(config: Any) -> nn.Module:
        config.text_config.vocab_size = c.backbone.vocab_size
        for name, value in _vision(c).items():
            setattr(config.vision_config, name, value)
        return paligemma(config=config)

    def with_expert(config: Any) -> nn.Module:
        config.vocab_size = 1  # of an unused head
        return gemma(config=config)

    replaced = dict(zip(PARTS, (with_backbone, with_expert), strict=True))
    with patch.multiple(module, get_gemma_config=dimensions, **replaced), torch.device(device):
        made = module.PI05Pytorch(_config(module, c))
    return made.to(device).requires_grad_(False).eval()


def _vision(c: ModelConfig) -> dict[str, Any]:
    v = c.vision
    return dict(
        hidden_size=v.width,
        intermediate_size=v.mlp,
        num_hidden_layers=v.layers,
        num_attention_heads=v.heads,
        patch_size=v.patch_size,
        layer_norm_eps=v.eps,
        projection_dim=c.backbone.width,
    )


def _config(module: ModuleType, c: ModelConfig) -> Any:
    return module.PI05Config(
        dtype='float32',
        num_inference_steps=STEPS,
        chunk_size=c.chunk_size,
        n_action_steps=c.chunk_size,
        max_action_dim=c.padded_action_dim,
        image_resolution=(c.vision.image_size, c.vision.image_size),
        min_period=c.expert.time_min_period,
        max_period=c.expert.time_max_period,
    )
