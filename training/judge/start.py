"""Initial weights of a judge: small random ones, with working attention heads in two layers.

Otherwise the first minutes of training are spent on pairs of tokens: that a value belongs to the
key before it, and that a pointer means a key. Both are only initial values: training may change
every number. Token vectors have a constant feature, and one that marks values; the vector of a
pointer is that of its key. In the first layer one head attends to the previous token, the other to
tokens of the same name elsewhere, so that attention follows the links from the first layer on. In
the second layer one head attends to the segment that a value points to, the other to the one that
points to its own key. Where they need the name that the first layer has moved, they read it
through the matrices of that layer.

This module knows the parameters of a planner with two heads and as many KV heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from embodied_kv.model.planner import Planner
from training.judge.chains import BOS, END, KEYS, POINTER

CONSTANT, VALUE = 0, 1  # features of the residual stream
FEATURE = 2.0  # their magnitude; other features have a deviation of 1
SHARP = 1.5  # scale of attention by name
BEFORE, ELSEWHERE = 4.0, 1.25  # scales of attention to the previous token, and to others
FAST, SLOW = 0.1, 0.006  # rad per position: separates adjacent positions; no positions


@torch.no_grad()
def init_judge(model: Planner, seed: int) -> None:
    """Fill every parameter.

    Raises ValueError for a planner without two heads of each kind, or with less than 3 layers.
    """
    b, generator = model.config.backbone, torch.Generator().manual_seed(seed)
    if (b.heads, b.kv_heads) != (2, 2) or b.layers < 3:
        raise ValueError(
            f'{b.heads} heads, {b.kv_heads} KV heads, {b.layers} layers: not 2, 2, and 3 or more'
        )
    for name, p in model.named_parameters():
        if p.ndim > 1:
            last = name.endswith(('.o.weight', '.down.weight'))
            p.normal_(0, (p.shape[1] * (2 * b.layers if last else 1)) ** -0.5, generator=generator)
        else:
            p.zero_()
    model.backbone.norm.weight.fill_(-0.9)  # scales logits to a tenth
    _init_tokens(model.backbone.embed.weight)

    frequency = b.rope_theta ** (-torch.arange(0, b.head_dim, 2) / b.head_dim)
    moved = _init_first(model, frequency, generator)
    query, key, _ = _parts(model, 1)
    names = _names(frequency, b.width, generator)
    query[0], key[0] = names @ moved, names
    query[1], key[1] = names, names @ moved
    values_only = len(frequency) - 1  # of the slowest pair
    for projection, feature in ((query, CONSTANT), (key, VALUE)):
        projection[:, values_only] = 0
        projection[:, values_only, feature] = SHARP
    model.backbone.layers[1].o.weight.mul_(0.7 * (2 * b.layers) ** 0.5)


def _init_tokens(table: Tensor) -> None:
    scale = table.shape[1] ** -0.5  # `Planner.embed` multiplies by its inverse
    table[POINTER:END] = table[:KEYS]
    table[:, CONSTANT] = FEATURE * scale
    table[:, VALUE] = -FEATURE * scale
    table[POINTER:BOS, VALUE] = FEATURE * scale


def _init_first(model: Planner, frequency: Tensor, generator: torch.Generator) -> Tensor:
    """Initialise the heads of the first layer.

    Returns the map from a token to its encoding in the output of the next one, [width, width].
    """
    b, half = model.config.backbone, len(frequency)
    fast = (frequency > FAST).float()
    query, key, value = _parts(model, 0)
    query[0], key[0] = 0, 0
    query[0, :half, CONSTANT] = BEFORE * fast
    key[0, :half, CONSTANT] = BEFORE * fast * frequency.cos()  # turned by one position
    key[0, half:, CONSTANT] = BEFORE * fast * frequency.sin()
    query[1] = key[1] = _names(frequency, b.width, generator)
    query[1, :half, CONSTANT] = -ELSEWHERE * fast
    key[1, :half, CONSTANT] = ELSEWHERE * fast
    out = model.backbone.layers[0].o.weight[:, : b.head_dim]
    out *= (2 * b.layers) ** 0.5
    moved = out @ value[0]
    moved[:, [CONSTANT, VALUE]] = 0
    return moved * b.width**0.5 / moved.norm()


def _names(frequency: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Return a random projection of what tokens are, without position: [head_dim, width]."""
    slow = (frequency < SLOW).float().repeat(2)[:, None]
    names = torch.randn(2 * len(frequency), width, generator=generator)
    names[:, [CONSTANT, VALUE]] = 0
    return names * slow * SHARP * width**-0.5


def _parts(model: Planner, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q, K and V of a layer's heads, [heads, head_dim, width] each, as views."""
    b = model.config.backbone
    matrices = model.backbone.layers[layer].qkv.weight.view(-1, b.head_dim, b.width)
    return matrices.split([b.heads, b.kv_heads, b.kv_heads])
