"""The weights that training starts from.

Knows the names and shapes of a Pi05's parameters alone.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from embodied_kv.model.pi05 import Pi05


@torch.no_grad()
def init_for_training(model: Pi05, seed: int) -> None:
    """Fills every parameter of a Pi05 so that it learns from the first step.

    A branch's last matrix is smaller by sqrt(2 layers); the expert's gates start open, its output
    near zero, and the logits at a tenth.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    c = model.config
    for name, p in model.named_parameters():
        if p.ndim > 1:
            p.normal_(
                0, _deviation(name, p, c.vision.layers, c.backbone.layers), generator=generator
            )
        elif 'norm' in name and name.startswith('vision.') and name.endswith('weight'):
            p.fill_(1)
        else:
            p.zero_()
            if re.fullmatch(r'expert\..*norm\.bias', name):
                p[-len(p) // 3 :] = 1
    model.backbone.norm.weight.fill_(-0.9)


def _deviation(name: str, p: Tensor, vision_layers: int, layers: int) -> float:
    fan_in = p[0].numel() ** -0.5  # [out, in...]
    if name == 'backbone.embed.weight':
        return fan_in
    if re.search(r'position_embedding|^expert\..*norm\.|action_out', name):
        return 0.02
    if re.search(r'out_proj|fc2', name):
        return fan_in * (2 * vision_layers) ** -0.5
    if re.search(r'\.(o|down)\.weight', name):
        return fan_in * (2 * layers) ** -0.5
    return fan_in
