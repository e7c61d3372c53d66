"""LeRobot's SmolVLA in any dimensions.

LeRobot computes SmolVLA in float32, in which its checkpoints are loaded; `round` leaves it so.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.common.command import BenchmarkError
from benchmarks.peers.lerobot import STEPS
from benchmarks.peers.ways import Asked
from embodied_kv.config import ModelConfig

MODULE = 'lerobot.policies.smolvla.modeling_smolvla'
BACKBONE = 'lerobot.policies.smolvla.smolvlm_with_expert'


def aims(dtype: str) -> dict[tuple[str, str], float]:
    """Return how many times as fast as LeRobot's in float32 the compiled engine should be."""
    return {('frame', 'theirs_eager'): 2.0 if dtype == 'bfloat16' else 1 / 0.6}


class Peer:
    """A VLAFlowMatching in float32, and the calls of its sample_actions. module: MODULE."""

    def __init__(self, module: ModuleType, c: ModelConfig, device: str) -> None:
        self._module, self.model = module, build(module, c, device)
        self.compile_mode: str = self.model.config.compile_mode

    def round(self, dtype: str) -> None:
        """Leave the weights in float32."""

    def inputs(self, asked: Asked) -> tuple:
        """Return images, whether they are there, ids, whether they are valid, and the state."""
        there = torch.ones(1, dtype=torch.bool, device=asked.ids.device)
        images = [*asked.images]
        valid = there.expand_as(asked.ids)
        return images, [there] * len(images), asked.ids, valid, asked.state

    def prefix(self, *inputs: Any) -> tuple[Tensor, object]:
        """Return the prefix: which tokens are valid, and their cache."""
        embedded, valid, blocks = self.model.embed_prefix(*inputs)
        _, cache = self.model.vlm_with_expert.forward(
            attention_mask=self._module.make_att_2d_masks(valid, blocks),
            position_ids=torch.cumsum(valid, dim=1) - 1,
            past_key_values=None,
            inputs_embeds=[embedded, None],
            use_cache=True,
        )
        return valid, cache

    def denoise(self, valid: Tensor, cache: object, noise: Tensor) -> Tensor:
        """Return the chunk that is denoised from a prefix."""

        def step(input_x_t: Tensor, current_timestep: Tensor) -> Tensor:
            return self.model.denoise_step(valid, cache, input_x_t, current_timestep)

        return self._module.euler_integrate(step, noise, STEPS)

    def sample(self, noise: Tensor, *inputs: Any) -> Tensor:
        """Return the chunk of a frame."""
        return self.model.sample_actions(*inputs, noise=noise)


def build(module: ModuleType, c: ModelConfig, device: str) -> nn.Module:
    """Return a VLAFlowMatching in float32 with the dimensions of `c` and its own random weights.

    Neither its configuration nor its tokenizer is fetched. Raises BenchmarkError for a config that
    it does not support.
    """
    if c.backbone.kind != 'llama':
        raise BenchmarkError(f"{c.name} has no backbone of LeRobot's SmolVLA")
    backbone = import_module(BACKBONE)
    start, image = (*c.frame, 0, 0)[:2]
    tokens = SimpleNamespace(fake_image_token_id=start, global_image_token_id=image)
    processor = SimpleNamespace(tokenizer=tokens)
    replaced = {
        'AutoConfig': SimpleNamespace(from_pretrained=lambda _: _config(c)),
        'AutoProcessor': SimpleNamespace(from_pretrained=lambda _: processor),
        'get_intermediate_size': lambda _: c.expert.mlp,
    }
    with patch.multiple(backbone, **replaced), torch.device(device):
        made = module.VLAFlowMatching(_policy(module, c, device))
    backbone.DynamicCache = cropping(backbone.DynamicCache)
    return made.to(device).requires_grad_(False).eval()


def _policy(module: ModuleType, c: ModelConfig, device: str) -> Any:
    b, e = c.backbone, c.expert
    made = module.SmolVLAConfig(
        num_steps=STEPS,
        chunk_size=c.chunk_size,
        n_action_steps=c.chunk_size,
        max_action_dim=c.padded_action_dim,
        max_state_dim=c.state_width,
        num_vlm_layers=b.layers,
        num_expert_layers=len(range(0, b.layers, e.every)),
        self_attn_every_n_layers=e.self_every,
        expert_width_multiplier=e.width / b.width,
        add_image_special_tokens=bool(c.frame),
        min_period=e.time_min_period,
        max_period=e.time_max_period,
    )
    made.device = device  # a field of its base class
    return made


def _config(c: ModelConfig) -> Any:
    """Return the configuration of its vision-language model."""
    from transformers import SmolVLMConfig

    b, v = c.backbone, c.vision
    return SmolVLMConfig(
        text_config=dict(
            model_type='llama',
            hidden_size=b.width,
            intermediate_size=b.mlp,
            num_hidden_layers=b.layers,
            num_attention_heads=b.heads,
            num_key_value_heads=b.kv_heads,
            head_dim=b.head_dim,
            rms_norm_eps=b.eps,
            vocab_size=b.vocab_size,
            pad_token_id=0,
        ),
        vision_config=dict(
            hidden_size=v.width,
            intermediate_size=v.mlp,
            num_hidden_layers=v.layers,
            num_attention_heads=v.heads,
            image_size=v.image_size,
            patch_size=v.patch_size,
            layer_norm_eps=v.eps,
        ),
        scale_factor=v.merge,
        pad_token_id=0,
    )


def cropping(base: type) -> type:
    """Return a cache whose `crop` takes a length: newer ones take minus the surplus."""

    class Cache(base):
        def crop(self, length: int) -> None:
            for layer in self.layers:
                if (beyond := layer.get_seq_length() - length) > 0:
                    layer.crop(-beyond)

    return Cache
