"""The weights a judge starts from: small ones at random, and two layers that can look already.

Pairs of tokens are what the first minutes of such a training are spent on: that a value belongs to
the key before it, and that a pointer means a key. Here both are a start, and no more: training may
change every number. Token vectors get a constant feature, and one that says whether a token is a
value; a pointer's is that of its key. In the first layer one head looks at the token before, the
other at tokens of its own name elsewhere, so that attention goes along the links from the first
layer on. In the second one head looks for the segment that a value points to, the other for the
one that points to its own key: where each needs the name that the first layer has moved, it looks
through that layer's own matrices.

Knows the parameters of a planner with two heads and as many KV heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from embodied_kv.model.planner import Planner
from training.judge.chains import BOS, END, KEYS, POINTER

CONSTANT, VALUE = 0, 1  # features of the residual stream
FEATURE = 2.0  # what they are where they are on; other features have a deviation of 1
SHARP = 1.5  # of the look-ups by name
BEFORE, ELSEWHERE = 4.0, 1.25  # of the look at the token before, and away from oneself
FAST, SLOW = 0.1, 0.006  # rad per position: tells neighbours apart; tells no positions apart


@torch.no_grad()
def init_judge(model: Planner, seed: int) -> None:
    """Fills every parameter. Raises ValueError for a planner without two heads of each kind."""
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
    model.backbone.norm.weight.fill_(-0.9)  # logits of a tenth
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
    """The first layer's heads -> how the token before lies in its output, [width, width]."""
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
    """A random look at what tokens are, wherever they stand: [head_dim, width]."""
    slow = (frequency < SLOW).float().repeat(2)[:, None]
    names = torch.randn(2 * len(frequency), width, generator=generator)
    names[:, [CONSTANT, VALUE]] = 0
    return names * slow * SHARP * width**-0.5


def _parts(model: Planner, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V of a layer's heads, [heads, head_dim, width] each; views."""
    b = model.config.backbone
    matrices = model.backbone.layers[layer].qkv.weight.view(-1, b.head_dim, b.width)
    return matrices.split([b.heads, b.kv_heads, b.kv_heads])
