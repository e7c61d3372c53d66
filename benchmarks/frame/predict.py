"""Predicted time of a batched frame from its parts, and the cost of reading rows in place.

Each part is the model over ordinary contiguous tensors: no arena, no manager, no handles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.common import clock, report, scene
from benchmarks.frame.copying import ContiguousAppend
from benchmarks.frame.modes import Setting
from embodied_kv.kernels.attention import merge, row_attention
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.model.policy import Policy


class DenseView:
    """A KV view of the tokens themselves and, if given, of a contiguous prefix; stores nothing."""

    def __init__(
        self, batch: int, tokens: int, device: torch.device, prefix: tuple | None = None
    ) -> None:
        self._own = RowBatch.dense(batch, tokens, tokens, device)
        self._prefix = prefix
        if prefix is not None:
            self._read = RowBatch.dense(batch, prefix[0].shape[3], tokens, device)

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Do nothing: no KV is kept."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = row_attention(q, k.transpose(1, 2), v.transpose(1, 2), self._own)
        if self._prefix is None:
            return own[0]
        return merge(
            row_attention(q, self._prefix[0][layer], self._prefix[1][layer], self._read), own
        )


def contiguous(policy: Policy, slots: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Return random caches, K and V, [layers, slots, kv_heads, tokens, head_dim]."""
    b, model = policy.config.backbone, policy.model
    shape = (b.layers, slots, b.kv_heads, tokens, b.head_dim)
    return tuple(torch.randn(shape, device=model.device).to(model.dtype) for _ in range(2))


def predict(policy: Policy, setting: Setting, device: str, repeats: int) -> float:
    """Return the ms of prefill, 10 denoise steps, one query and k decode steps, timed alone."""
    model, c = policy.model, policy.config
    o = scene.observation(c, 1)
    ids = torch.tensor([policy.prompt_ids(o.instruction, o.state)], device=model.device)
    images = policy.images(o.images)
    query = torch.tensor([policy.tokenizer.encode(scene.QUERY)], device=model.device)
    length = len(c.views) * c.vision.tokens + ids.shape[1]
    room = length + query.shape[1] + setting.tokens + 1
    caches = contiguous(policy, setting.live, room)
    prefix = tuple(part[:, :1, :, :length].contiguous() for part in caches)
    tables = model.expert.modulation(torch.linspace(1, 0.1, 10, device=model.device))
    x = torch.randn(1, c.chunk_size, c.padded_action_dim, device=model.device)
    rope = model.suffix_rope(length + torch.arange(c.chunk_size, device=model.device)[None])
    token = torch.full((setting.live, 1), 10, device=model.device)
    middle = [room - setting.tokens // 2 - 1] * setting.live

    def prefill() -> None:
        views = model.embed_images(images).flatten(0, 1)
        embeddings = torch.cat([views, model.embed_tokens(ids[0])])[None]
        model.prefill(embeddings, DenseView(1, length, model.device))

    def denoise() -> None:
        for table in tables:
            model.velocity(x, table, DenseView(1, c.chunk_size, model.device, prefix), rope)

    def begin() -> None:
        one = tuple(part[:, :1] for part in caches)
        model.extend(query, ContiguousAppend(*one, [length], query.shape[1]))

    def step() -> None:
        model.extend(token, ContiguousAppend(*caches, middle, 1))

    timer = clock.timer(device)
    prefilled = report.seconds(prefill, repeats, min(1, repeats - 1), device, timer)
    acted, begun, stepped = (
        report.seconds(work, 3 * repeats, 1, device, timer) for work in (denoise, begin, step)
    )
    return 1e3 * (prefilled + acted + begun + setting.steps * stepped)


def attention_loss(policy: Policy, setting: Setting, device: str) -> float:
    """Return the seconds that a frame loses as decode attends to rows in place.

    The comparison is with attention over one contiguous batch of prefix and decode KV.
    """
    c, model = policy.config, policy.model
    length, tail, slots = c.prefix_tokens, setting.tokens // 2 + 8, setting.live
    prefixes, decode_kv = (
        contiguous(policy, slots, length),
        contiguous(policy, slots, setting.tokens + 16),
    )
    whole = contiguous(policy, slots, length + tail)
    q = torch.randn(slots, 1, c.backbone.heads, c.backbone.head_dim, device=model.device).to(
        model.dtype
    )
    rows = RowBatch.dense(slots, length, 1, model.device)
    ends = RowBatch.dense(slots, tail, 1, model.device)
    both = RowBatch.dense(slots, length + tail, 1, model.device)

    def in_place() -> None:
        for i in range(c.backbone.layers):
            merge(
                row_attention(q, prefixes[0][i], prefixes[1][i], rows),
                row_attention(q, decode_kv[0][i], decode_kv[1][i], ends),
            )

    def in_one() -> None:
        for i in range(c.backbone.layers):
            row_attention(q, whole[0][i], whole[1][i], both)

    return setting.steps * report.difference(in_place, in_one, 21, device, clock.timer(device))
