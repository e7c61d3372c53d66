"""Initial weights of a training.

This module only knows the names and shapes of the parameters of a Pi05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_kv.config import ModelConfig
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.tokenizer import Tokenizer

LABELS = {'name', 'dtype'}  # fields of a config that are no dimensions


@torch.no_grad()
def init_for_training(model: Pi05, seed: int) -> None:
    """Fill every parameter of a Pi05 such that it learns from the first step.

    The last matrix of a residual branch is smaller by sqrt(2 layers). The gates of the action
    expert start open, its output starts near zero, and the logits are scaled to a tenth.
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


@torch.no_grad()
def grow(small: Pi05, large: Pi05) -> None:
    """Fill `large` from a model with smaller images, or with a larger patch merge.

    Parameters of equal shape are copied. The position table is interpolated bilinearly. If `large`
    merges fewer patches into a token, the projector blocks of the patches that correspond to one
    patch of `large` are summed, so that a token is unchanged if these patches are equal. Raises
    ValueError that names another dimension in which the models differ.
    """
    there, here = small.config, large.config
    for name, (old, new) in _differences(there, here):
        if not (
            (name == 'vision.image_size' and new > old)
            or (name == 'vision.merge' and old % new == 0)
        ):
            raise ValueError(f'{name} is {old}, the model has {new}: that cannot be grown into')
    values = dict(small.named_parameters())
    for name, p in large.named_parameters():
        value = values[name].float()
        if name.endswith('position_embedding.weight'):
            value = _finer(value, p.shape[0])
        elif name == 'vision.projector.weight':
            value = _fewer(value, there.vision.merge, here.vision.merge)
        p.copy_(value)


@torch.no_grad()
def retell(table: Tensor, known: Tokenizer, words: Tokenizer) -> None:
    """Change embedding rows [vocabulary, width] in place from tokenizer `known` to `words`.

    A token of both vocabularies keeps its row. Another token starts with the mean of the rows of
    the tokens that encoded its text before.
    """
    rows = known.backend.get_vocab()
    told = table.clone()
    for token, row in words.backend.get_vocab().items():
        before = [rows[token]] if token in rows else known.encode(words.decode([row]))
        table[row] = told[before].mean(0)


def _differences(there: ModelConfig, here: ModelConfig) -> Iterator[tuple[str, tuple]]:
    """Yield the dimensions in which two configs differ, by name: (there, here)."""
    old, new = asdict(there), asdict(here)
    for part in ('vision', 'backbone', 'expert'):
        old |= {f'{part}.{name}': value for name, value in old.pop(part).items()}
        new |= {f'{part}.{name}': value for name, value in new.pop(part).items()}
    for name in new:
        if old[name] != new[name] and name not in LABELS:
            yield name, (old[name], new[name])


def _finer(table: Tensor, patches: int) -> Tensor:
    """Interpolate [side * side, width] to [patches, width]: row-major grids over one image."""
    old, new = round(len(table) ** 0.5), round(patches**0.5)
    grid = table.T.view(1, -1, old, old)
    grid = F.interpolate(grid, (new, new), mode='bilinear', align_corners=False)
    return grid[0].flatten(1).T


def _fewer(matrix: Tensor, old: int, new: int) -> Tensor:
    """Sum [out, old * old * width] to [out, new * new * width]; blocks are patches, row-major."""
    out, part = len(matrix), old // new
    blocks = matrix.view(out, new, part, new, part, -1)
    return blocks.sum((2, 4)).flatten(1)
